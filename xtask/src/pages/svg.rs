//! A picture in SVG that follows the reader's light or dark theme.

use std::fmt::Write as _;

/// Colours by class; the second set is for dark themes.
const STYLE: &str = "\
text{font:13px system-ui,sans-serif;fill:#1f2328;stroke:none!important}.soft{fill:#59636e}.head{font-weight:600}.end{text-anchor:end}\
.mid{text-anchor:middle}.paper{fill:#fff}.grid{stroke:#d1d9e0;fill:none}.box{stroke:#59636e;fill:none}.arrow{stroke:#59636e;fill:none}\
.a{fill:#0969da;stroke:#0969da}.b{fill:#bc4c00;stroke:#bc4c00}.c{fill:#1a7f37;stroke:#1a7f37}.d{fill:#8250df;stroke:#8250df}\
.e{fill:#d1d9e0;stroke:#59636e}.curve{fill:none;stroke-width:2}.cell{stroke-width:1}.on{fill:#fff}\
@media(prefers-color-scheme:dark){text{fill:#f0f6fc}.soft{fill:#9198a1}.paper{fill:#0d1117}.grid{stroke:#3d444d}\
.box,.arrow{stroke:#9198a1}.a{fill:#4493f8;stroke:#4493f8}.b{fill:#f0883e;stroke:#f0883e}.c{fill:#3fb950;stroke:#3fb950}\
.d{fill:#ab7df8;stroke:#ab7df8}.e{fill:#3d444d;stroke:#9198a1}.curve{fill:none}.on{fill:#0d1117}}";

/// A place in pixels, from the left and the top.
#[derive(Debug, Clone, Copy)]
pub(super) struct At(pub(super) f64, pub(super) f64);

/// A picture, element by element.
#[derive(Debug)]
pub(super) struct Svg {
    width: u32,
    height: u32,
    title: String,
    body: String,
}

impl Svg {
    /// An empty picture of this size in pixels, whose title screen readers say.
    pub(super) fn new(width: u32, height: u32, title: &str) -> Self {
        Self { width, height, title: title.into(), body: String::new() }
    }

    /// Writes a line of text with its baseline at `at`, where it begins. With the class `end` or `mid`, its end or its middle is
    /// there.
    pub(super) fn text(&mut self, at: At, class: &str, text: &str) {
        let At(x, y) = at;
        let _ =
            writeln!(self.body, r#"<text x="{x:.1}" y="{y:.1}" class="{class}">{}</text>"#, escaped(text));
    }

    /// Draws a straight line.
    pub(super) fn line(&mut self, from: At, to: At, class: &str) {
        self.curve(&[from, to], class);
    }

    /// Draws lines through points.
    pub(super) fn curve(&mut self, points: &[At], class: &str) {
        let points: Vec<String> = points.iter().map(|At(x, y)| format!("{x:.1},{y:.1}")).collect();
        let _ = writeln!(self.body, r#"<polyline points="{}" class="{class}"/>"#, points.join(" "));
    }

    /// Draws a straight line with a point at its end.
    pub(super) fn arrow(&mut self, from: At, to: At) {
        let (dx, dy) = (to.0 - from.0, to.1 - from.1);
        let scale = 6.0 / dx.hypot(dy);
        let (dx, dy) = (dx * scale, dy * scale);
        self.line(from, to, "arrow");
        let [left, right] = [0.6, -0.6].map(|side| At(to.0 - dx + dy * side, to.1 - dy - dx * side));
        self.curve(&[left, to, right], "arrow");
    }

    /// Fills a rectangle, given by its upper left corner.
    pub(super) fn rect(&mut self, at: At, size: At, class: &str) {
        let (At(x, y), At(width, height)) = (at, size);
        let _ = writeln!(
            self.body,
            r#"<rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" class="{class}"/>"#
        );
    }

    /// Draws a disc.
    pub(super) fn dot(&mut self, at: At, radius: f64, class: &str) {
        let At(x, y) = at;
        let _ = writeln!(self.body, r#"<circle cx="{x:.1}" cy="{y:.1}" r="{radius}" class="{class}"/>"#);
    }

    /// Returns the text of the file.
    pub(super) fn finish(self) -> String {
        let Self { width, height, title, body } = self;
        let title = escaped(&title);
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
             role=\"img\">\n<title>{title}</title>\n<style>{STYLE}</style>\n\
             <rect width=\"{width}\" height=\"{height}\" class=\"paper\"/>\n{body}</svg>\n"
        )
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
