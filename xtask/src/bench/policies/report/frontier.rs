//! Curves of a report: loss against speed or density, as SVG that takes its colours from the page and fits a phone.

use std::fmt::Write;

use super::super::page::escaped;
use crate::bench::chart::Axis;

/// Units of a drawing; a page scales it to its column.
const WIDTH: f64 = 480.0;
const HEIGHT: f64 = 340.0;
/// Room for labels: left, right, above, below.
const MARGINS: [f64; 4] = [54.0, 24.0, 14.0, 46.0];

/// Losses below this, in per cent, are drawn at the bottom: a logarithm has no place for none.
const FLOOR: f64 = 0.01;
/// Losses that have a line.
const LINES: [f64; 11] = [FLOOR, 0.03, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 100.0];

/// A policy in a drawing.
pub(super) struct Dot {
    pub(super) x: f64,
    /// Loss in per cent, and its standard error.
    pub(super) loss: f64,
    pub(super) loss_error: f64,
    /// Number of its colour, and of its form: one a family of policies, and one a KV type.
    pub(super) family: usize,
    pub(super) form: usize,
    /// Number in the table, written beside it.
    pub(super) label: Option<usize>,
    /// The policy in words, told where a pointer rests on it.
    pub(super) title: String,
    /// Whether the line of the best goes through it.
    pub(super) is_best: bool,
}

/// A drawing of losses over `x`.
pub(super) struct Curves<'a> {
    /// The drawing in words.
    pub(super) title: &'a str,
    pub(super) x: Axis,
    pub(super) x_title: &'a str,
    /// Behind each number of the x axis.
    pub(super) unit: &'static str,
    pub(super) dots: Vec<Dot>,
}

/// From values to units of the drawing.
struct Scale {
    x: [f64; 2],
    /// Highest loss.
    top: f64,
}

impl Scale {
    fn x(&self, value: f64) -> f64 {
        let [left, right, ..] = MARGINS;
        left + (value - self.x[0]) / (self.x[1] - self.x[0]) * (WIDTH - left - right)
    }

    fn y(&self, loss: f64) -> f64 {
        let [.., above, below] = MARGINS;
        let part = (loss.clamp(FLOOR, self.top) / FLOOR).ln() / (self.top / FLOOR).ln();
        HEIGHT - below - part * (HEIGHT - above - below)
    }
}

impl Curves<'_> {
    /// The drawing as an SVG element.
    pub(super) fn svg(&self) -> String {
        let axis = self.x.over(self.dots.iter().map(|dot| dot.x));
        let worst = self.dots.iter().map(|dot| dot.loss + dot.loss_error).fold(1.0, f64::max);
        let top = LINES.into_iter().find(|line| *line >= worst).unwrap_or(worst);
        let scale = Scale { x: [axis.low, axis.high], top };
        let [left, right, above, below] = MARGINS;
        let mut svg = format!(
            "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">\n",
            escaped(self.title)
        );
        for line in LINES.into_iter().filter(|line| *line <= top) {
            let (y, sign) = (scale.y(line), if line > FLOOR { "" } else { "≤ " });
            let _ = writeln!(
                svg,
                "<path class=\"grid\" d=\"M{left} {y:.1}H{}\"/><text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{sign}{line}</text>",
                WIDTH - right,
                left - 7.0,
                y + 4.0
            );
        }
        for tick in axis.ticks() {
            let (x, label) = (scale.x(tick), axis.label(tick));
            let _ = writeln!(
                svg,
                "<path class=\"grid\" d=\"M{x:.1} {above}V{}\"/><text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{label}{}</text>",
                HEIGHT - below,
                HEIGHT - below + 17.0,
                self.unit
            );
        }
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text><text transform=\"translate(12 {}) rotate(-90)\" \
             text-anchor=\"middle\">loss, %</text>",
            (left + WIDTH - right) / 2.0,
            HEIGHT - 8.0,
            self.x_title,
            (above + HEIGHT - below) / 2.0
        );
        self.best(&scale, &mut svg);
        self.dots.iter().for_each(|dot| dot.draw(&scale, &mut svg));
        self.labels(&scale, &mut svg);
        svg + "</svg>\n"
    }

    /// A stair through the best: what must be lost for a speed.
    fn best(&self, scale: &Scale, svg: &mut String) {
        let mut best: Vec<[f64; 2]> =
            self.dots.iter().filter(|dot| dot.is_best).map(|d| [d.x, d.loss]).collect();
        best.sort_by(|a, b| a[0].total_cmp(&b[0]));
        let Some(([x, loss], rest)) = best.split_first() else { return };
        let mut path = format!("M{:.1} {:.1}", scale.x(*x), scale.y(*loss));
        for [x, loss] in rest {
            let _ = write!(path, "V{:.1}H{:.1}", scale.y(*loss), scale.x(*x));
        }
        let _ = writeln!(svg, "<path class=\"best\" d=\"{path}\"/>");
    }

    /// Numbers beside dots, those that would lie on one another moved apart.
    fn labels(&self, scale: &Scale, svg: &mut String) {
        let mut placed: Vec<[f64; 2]> = Vec::new();
        for dot in &self.dots {
            let Some(label) = dot.label else { continue };
            let (x, y) = (scale.x(dot.x), scale.y(dot.loss));
            let places = [[9.0, -7.0], [9.0, 15.0], [-9.0, -7.0], [-9.0, 15.0], [0.0, -13.0], [0.0, 22.0]];
            let free = |[dx, dy]: &[f64; 2]| {
                let clear = |[px, py]: &[f64; 2]| (px - x - dx).abs() > 17.0 || (py - y - dy).abs() > 12.0;
                let inside = x + dx < WIDTH - 10.0 && y + dy > 12.0;
                let dots = self.dots.iter().all(|other| {
                    (scale.x(other.x) - x - dx).abs() > 9.0
                        || (scale.y(other.loss) - y - dy + 4.0).abs() > 9.0
                });
                inside && dots && placed.iter().all(clear)
            };
            let [dx, dy] = places.into_iter().find(free).unwrap_or(places[0]);
            placed.push([x + dx, y + dy]);
            let anchor = ["end", "middle", "start"][if dx < 0.0 {
                0
            } else if dx > 0.0 {
                2
            } else {
                1
            }];
            let _ = writeln!(
                svg,
                "<text class=\"number\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\">{label}</text>",
                x + dx,
                y + dy
            );
        }
    }
}

impl Dot {
    fn draw(&self, scale: &Scale, svg: &mut String) {
        let Self { x, loss, loss_error, family, form, title, .. } = self;
        let [low, high] = [loss - loss_error, loss + loss_error].map(|end| scale.y(end));
        let (x, y) = (scale.x(*x), scale.y(*loss));
        let _ = writeln!(
            svg,
            "<g class=\"s{family}{}\"><title>{}</title><path class=\"error\" d=\"M{x:.1} {low:.1}V{high:.1}\"/>{}</g>",
            if *form == 0 { "" } else { " other" },
            escaped(title),
            mark(*form, x, y)
        );
    }
}

/// The mark of a KV type.
pub(super) fn mark(form: usize, x: f64, y: f64) -> String {
    match form {
        0 => format!("<circle class=\"mark\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"5.5\"/>"),
        1 => format!("<path class=\"open\" d=\"M{:.1} {:.1}h9v9h-9z\"/>", x - 4.5, y - 4.5),
        2 => format!("<path class=\"open\" d=\"M{x:.1} {:.1}l5.5 9.5h-11z\"/>", y - 6.0),
        _ => format!("<path class=\"open\" d=\"M{x:.1} {:.1}l6 6l-6 6l-6-6z\"/>", y - 6.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dot(x: f64, loss: f64, is_best: bool) -> Dot {
        let label = is_best.then_some(7);
        Dot { x, loss, loss_error: 0.05, family: 1, form: 0, label, title: "a < b".into(), is_best }
    }

    #[test]
    fn the_best_are_joined_by_a_stair_and_numbered() {
        let dots = vec![dot(2.0, 1.0, true), dot(1.0, 0.0, true), dot(1.5, 2.0, false)];
        let svg = Curves { title: "loss", x: Axis::linear("speed"), x_title: "speed", unit: "x", dots }.svg();
        let stair = svg.lines().find(|line| line.contains("class=\"best\"")).unwrap();
        // From the left: up at the speed of dense attention, then right.
        let (up, right) = stair.split_once('V').unwrap().1.split_once('H').unwrap();
        assert!(up.parse::<f64>().unwrap() < HEIGHT - MARGINS[3], "{stair}");
        assert!(right.starts_with("456.0"), "{stair}");
        assert_eq!(svg.matches(">7</text>").count(), 2);
        assert_eq!(svg.matches("<g class=\"s1\"><title>a &lt; b</title>").count(), 3);
    }

    #[test]
    fn losses_that_a_logarithm_cannot_show_are_at_the_bottom() {
        let scale = Scale { x: [0.0, 1.0], top: 10.0 };
        assert_eq!((scale.y(-1.0), scale.y(0.0), scale.y(FLOOR)), (294.0, 294.0, 294.0));
        assert_eq!((scale.y(10.0), scale.y(11.0)), (14.0, 14.0));
        assert!(scale.y(0.1) > scale.y(1.0));
    }
}
