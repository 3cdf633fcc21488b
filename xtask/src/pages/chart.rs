//! Charts of results: curves, points and bars.

use super::svg::{At, Svg};

/// The classes of series, in order.
const CLASSES: [&str; 4] = ["a", "b", "c", "d"];

/// The spacing of values along an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scale {
    /// Equal steps are equal differences.
    Linear,
    /// Equal steps are equal ratios.
    Log,
}

/// An axis from the first to the last of its marks.
#[derive(Debug)]
pub(super) struct Axis<'a> {
    pub(super) label: &'a str,
    pub(super) scale: Scale,
    pub(super) marks: &'a [f64],
}

impl Axis<'_> {
    /// Returns the place of a value between the first mark, 0, and the last, 1.
    fn place(&self, value: f64) -> f64 {
        let of = |value: f64| if self.scale == Scale::Log { value.ln() } else { value };
        let (first, last) = (of(self.marks[0]), of(self.marks[self.marks.len() - 1]));
        (of(value) - first) / (last - first)
    }
}

/// Points of one colour, and their name.
#[derive(Debug)]
pub(super) struct Series {
    pub(super) name: String,
    pub(super) points: Vec<(f64, f64)>,
}

/// Title and axes of a chart.
#[derive(Debug)]
pub(super) struct Frame<'a> {
    pub(super) title: &'a str,
    pub(super) x: Axis<'a>,
    pub(super) y: Axis<'a>,
}

const WIDTH: u32 = 720;
const HEIGHT: u32 = 380;
const LEFT: f64 = 84.0;
const RIGHT: f64 = 560.0;
const TOP: f64 = 60.0;
const BOTTOM: f64 = 320.0;

impl Frame<'_> {
    fn at(&self, (x, y): (f64, f64)) -> At {
        At(LEFT + self.x.place(x) * (RIGHT - LEFT), BOTTOM - self.y.place(y) * (BOTTOM - TOP))
    }

    /// Draws title, axes and grid, with `below` pixels left below them.
    fn draw(&self, below: u32) -> Svg {
        let mut svg = Svg::new(WIDTH, HEIGHT + below, self.title);
        svg.text(At(16.0, 24.0), "head", self.title);
        svg.text(At(16.0, 42.0), "soft", self.y.label);
        for mark in self.y.marks {
            let At(_, y) = self.at((self.x.marks[0], *mark));
            svg.line(At(LEFT, y), At(RIGHT, y), "grid");
            svg.text(At(LEFT - 8.0, y + 4.0), "soft end", &grouped(*mark));
        }
        for mark in self.x.marks {
            let At(x, _) = self.at((*mark, self.y.marks[0]));
            svg.line(At(x, BOTTOM), At(x, BOTTOM + 5.0), "grid");
            svg.text(At(x, BOTTOM + 20.0), "soft mid", &grouped(*mark));
        }
        svg.text(At((LEFT + RIGHT) / 2.0, BOTTOM + 44.0), "soft mid", self.x.label);
        svg
    }
}

/// Draws a curve for each series, its name at its end.
pub(super) fn curves(frame: &Frame<'_>, series: &[Series]) -> String {
    let mut svg = frame.draw(0);
    for (series, class) in series.iter().zip(CLASSES) {
        let points: Vec<At> = series.points.iter().map(|point| frame.at(*point)).collect();
        svg.curve(&points, &format!("{class} curve"));
        for point in &points {
            svg.dot(*point, 3.5, class);
        }
        let Some(At(x, y)) = points.last() else { continue };
        svg.text(At(x + 12.0, y + 4.0), class, &series.name);
    }
    svg.finish()
}

/// Draws numbered points, which a list below the chart names; `series` have a name for each of their points.
pub(super) fn points(frame: &Frame<'_>, series: &[(Series, Vec<String>)]) -> String {
    let lines = series.iter().map(|(_, names)| names.len()).max().unwrap_or(0);
    let mut svg = frame.draw(30 + 17 * u32::try_from(lines).expect("a chart has few points"));
    let mut number = 0;
    let mut column = LEFT - 30.0;
    for ((series, names), class) in series.iter().zip(CLASSES) {
        let mut line = BOTTOM + 72.0;
        svg.text(At(column, line), class, &series.name);
        for (point, name) in series.points.iter().zip(names) {
            number += 1;
            line += 17.0;
            let At(x, y) = frame.at(*point);
            svg.dot(At(x, y), 8.5, class);
            svg.text(At(x, y + 4.0), "on mid", &number.to_string());
            svg.text(At(column, line), "soft", &format!("{number}  {name}"));
        }
        column += 340.0;
    }
    svg.finish()
}

/// One bar, with the text on its left.
#[derive(Debug)]
pub(super) struct Bar {
    pub(super) name: String,
    pub(super) value: f64,
    /// Index of the colour.
    pub(super) kind: usize,
}

/// Draws horizontal bars with their values; `kinds` names the colours.
pub(super) fn bars(title: &str, unit: &str, kinds: &[&str], bars: &[Bar]) -> String {
    let height = 78 + 24 * bars.len();
    let mut svg = Svg::new(WIDTH, u32::try_from(height).expect("a chart has few bars"), title);
    svg.text(At(16.0, 24.0), "head", title);
    svg.text(At(240.0, 42.0), "soft end", unit);
    let mut x = 250.0;
    for (kind, class) in kinds.iter().zip(CLASSES) {
        svg.rect(At(x, 32.0), At(11.0, 11.0), class);
        svg.text(At(x + 17.0, 42.0), "soft", kind);
        x += 34.0 + 6.4 * f64::from(u32::try_from(kind.len()).expect("a name is short"));
    }
    let most = bars.iter().map(|bar| bar.value).fold(0.0, f64::max);
    for (bar, row) in bars.iter().zip(0_u32..) {
        let y = 62.0 + 24.0 * f64::from(row);
        let length = bar.value / most * 390.0;
        svg.text(At(240.0, y + 12.0), "end", &bar.name);
        svg.rect(At(250.0, y), At(length, 16.0), CLASSES[bar.kind]);
        svg.text(At(256.0 + length, y + 12.0), "soft", &grouped(bar.value));
    }
    svg.finish()
}

/// A number with commas between thousands, and as many decimals as it needs.
pub(super) fn grouped(value: f64) -> String {
    let text = value.to_string();
    let (whole, rest) = text.split_once('.').map_or((&*text, String::new()), |(a, b)| (a, format!(".{b}")));
    let (sign, digits) = whole.strip_prefix('-').map_or(("", whole), |digits| ("-", digits));
    let mut parts: Vec<&str> =
        digits.as_bytes().rchunks(3).map(|part| std::str::from_utf8(part).expect("digits")).collect();
    parts.reverse();
    format!("{sign}{}{rest}", parts.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_commas() {
        let texts = [0.0, 0.5, 512.0, 8_192.0, -1_000_000.0, 108.4].map(grouped);
        assert_eq!(texts, ["0", "0.5", "512", "8,192", "-1,000,000", "108.4"]);
    }

    #[test]
    fn values_have_places_on_axes() {
        let place = |scale, value| Axis { label: "", scale, marks: &[1.0, 10.0, 100.0] }.place(value);
        assert_eq!([place(Scale::Log, 10.0), place(Scale::Linear, 50.5)], [0.5, 0.5]);
    }
}
