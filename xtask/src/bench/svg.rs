//! Charts as SVG text: points and lines over two axes, and heat maps. There are no scripts, so a page with
//! charts is a single file.

use std::fmt::Write;

/// Scale of an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scale {
    Linear,
    Log,
}

/// An axis.
#[derive(Debug, Clone)]
pub(super) struct Axis {
    pub(super) title: &'static str,
    pub(super) scale: Scale,
}

/// Points of one colour, joined by a line if `joined`.
#[derive(Debug, Clone)]
pub(super) struct Series {
    pub(super) name: String,
    pub(super) points: Vec<(f64, f64)>,
    pub(super) joined: bool,
}

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 80.0;
/// Height of a title and, below it, the name of an axis or the legend of colours.
const TOP: f64 = 56.0;
const LEGEND: f64 = 260.0;
/// Height of a line of the legend.
const LINE: f64 = 18.0;
const COLORS: [&str; 10] = [
    "#1b6ca8", "#d1495b", "#2a9d5c", "#edae49", "#6a4c93", "#00798c", "#8d6a9f", "#f26419", "#5f5f5f",
    "#a1c181",
];

/// A chart of these series. Points that a logarithmic axis cannot show are left out.
pub(super) fn chart(title: &str, x: &Axis, y: &Axis, series: &[Series]) -> String {
    let fits = |(a, b): &(f64, f64)| x.holds(*a) && y.holds(*b);
    let points: Vec<(f64, f64)> = series.iter().flat_map(|s| &s.points).copied().filter(fits).collect();
    let xs = x.range(points.iter().map(|p| p.0));
    let ys = y.range(points.iter().map(|p| p.1));
    let at = |p: &(f64, f64)| (LEFT + x.part(p.0, xs) * WIDTH, TOP + (1.0 - y.part(p.1, ys)) * HEIGHT);
    let legend = LINE * series.len() as f64;
    let mut svg = open(LEFT + WIDTH + LEGEND, TOP + (HEIGHT + 60.0).max(legend + 8.0));
    heading(&mut svg, title);
    let _ = writeln!(
        svg,
        "<path d=\"M{LEFT} {TOP}V{}H{}\" fill=\"none\" stroke=\"#888\"/>",
        TOP + HEIGHT,
        LEFT + WIDTH
    );
    for tick in x.ticks(xs) {
        let (at, _) = at(&(tick, ys.0));
        let _ = writeln!(svg, "<path d=\"M{at:.1} {}v5\" stroke=\"#888\"/>", TOP + HEIGHT);
        text(&mut svg, at, TOP + HEIGHT + 20.0, "middle", &number(tick));
    }
    for tick in y.ticks(ys) {
        let (_, at) = at(&(xs.0, tick));
        let _ = writeln!(svg, "<path d=\"M{LEFT} {at:.1}h{WIDTH}\" stroke=\"#eee\"/>");
        text(&mut svg, LEFT - 8.0, at + 4.0, "end", &number(tick));
    }
    text(&mut svg, LEFT + WIDTH / 2.0, TOP + HEIGHT + 44.0, "middle", x.title);
    text(&mut svg, 8.0, TOP - 14.0, "start", y.title);
    for (index, series) in series.iter().enumerate() {
        let points: Vec<_> = series.points.iter().filter(|p| fits(p)).map(at).collect();
        draw(&mut svg, &points, series, index);
        let row = TOP + LINE * (index as f64 + 0.5);
        mark(&mut svg, (LEFT + WIDTH + 20.0, row), index, &series.name);
        text(&mut svg, LEFT + WIDTH + 30.0, row + 4.0, "start", &series.name);
    }
    svg.push_str("</svg>\n");
    svg
}

fn draw(svg: &mut String, points: &[(f64, f64)], series: &Series, index: usize) {
    let color = COLORS[index % COLORS.len()];
    if series.joined {
        let path: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1} {y:.1}")).collect();
        if path.len() > 1 {
            let path = path.join("L");
            let _ =
                writeln!(svg, "<path d=\"M{path}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"1.5\"/>");
        }
    }
    points.iter().for_each(|point| mark(svg, *point, index, &series.name));
}

/// Adds a point of series `index`: where colours run out, the next series have another form.
fn mark(svg: &mut String, (x, y): (f64, f64), index: usize, name: &str) {
    let (color, name) = (COLORS[index % COLORS.len()], escaped(name));
    let form = match index / COLORS.len() {
        0 => format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\""),
        1 => format!("<path d=\"M{:.1} {:.1}h7v7h-7z\"", x - 3.5, y - 3.5),
        2 => format!("<path d=\"M{x:.1} {:.1}l5 5-5 5-5-5z\"", y - 5.0),
        _ => format!("<path d=\"M{x:.1} {:.1}l5 8h-10z\"", y - 5.0),
    };
    let tag = if index < COLORS.len() { "circle" } else { "path" };
    let _ = writeln!(svg, "{form} fill=\"{color}\"><title>{name}</title></{tag}>");
}

/// Labels of the rows or columns of a heat map; those for which there is room are written.
#[derive(Debug, Clone)]
pub(super) struct Labels {
    pub(super) name: &'static str,
    pub(super) each: Vec<String>,
}

impl Labels {
    /// Counted from 0.
    pub(super) fn counted(name: &'static str, count: usize) -> Self {
        Self { name, each: (0..count).map(|i| i.to_string()).collect() }
    }

    /// Indices and texts of labels at least `apart` pixels from each other, for cells `cell` pixels wide.
    fn shown(&self, cell: f64, apart: f64) -> impl Iterator<Item = (usize, &String)> {
        let round = (0..9).flat_map(|power| [1, 2, 5].map(|step| step * 10_usize.pow(power)));
        let every = round.into_iter().find(|every| *every as f64 * cell >= apart);
        self.each.iter().enumerate().step_by(every.unwrap_or(usize::MAX))
    }
}

/// A heat map of rows of values from 0 (white) to 1 (dark); values that are not finite are grey.
pub(super) fn heat_map(title: &str, x: &Labels, y: &Labels, rows: &[Vec<f64>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0).max(1);
    let wide = (WIDTH / columns as f64).clamp(1.0, 36.0);
    let high = (144.0 / rows.len().max(1) as f64).clamp(12.0, 24.0);
    let (width, height) = (wide * columns as f64, high * rows.len() as f64);
    // A letter of a heading is at most 8 pixels wide.
    let mut svg = open(
        (LEFT + width).max(290.0).max(8.0 + 8.0 * title.chars().count() as f64) + 20.0,
        TOP + height + 48.0,
    );
    heading(&mut svg, title);
    key(&mut svg);
    for (row, values) in rows.iter().enumerate() {
        for (column, value) in values.iter().enumerate() {
            let fill = if value.is_finite() { shade(*value) } else { NONE.into() };
            let (at_x, at_y) = (LEFT + wide * column as f64, TOP + high * row as f64);
            let _ = writeln!(
                svg,
                "<rect x=\"{at_x:.2}\" y=\"{at_y:.1}\" width=\"{wide:.2}\" height=\"{high:.1}\" fill=\"{fill}\"/>"
            );
        }
    }
    let _ = writeln!(
        svg,
        "<rect x=\"{LEFT}\" y=\"{TOP}\" width=\"{width:.2}\" height=\"{height:.1}\" fill=\"none\" stroke=\"#888\"/>"
    );
    for (column, label) in x.shown(wide, 34.0) {
        text(&mut svg, LEFT + wide * (column as f64 + 0.5), TOP + height + 16.0, "middle", label);
    }
    for (row, label) in y.shown(high, 14.0) {
        text(&mut svg, LEFT - 6.0, TOP + high * (row as f64 + 0.5) + 4.0, "end", label);
    }
    text(&mut svg, LEFT, TOP + height + 36.0, "start", x.name);
    text(&mut svg, 8.0, TOP - 10.0, "start", y.name);
    svg.push_str("</svg>\n");
    svg
}

/// The colour of values that are not finite.
const NONE: &str = "#ccc";

/// The legend of a heat map.
fn key(svg: &mut String) {
    let first = LEFT + 12.0;
    text(svg, LEFT, TOP - 10.0, "start", "0");
    for step in 0..=4 {
        let (x, fill) = (first + 16.0 * f64::from(step), shade(f64::from(step) / 4.0));
        let y = TOP - 20.0;
        let _ = writeln!(
            svg,
            "<rect x=\"{x}\" y=\"{y}\" width=\"16\" height=\"12\" fill=\"{fill}\" stroke=\"#888\"/>"
        );
    }
    text(svg, first + 84.0, TOP - 10.0, "start", "1");
    let (x, y) = (first + 108.0, TOP - 20.0);
    let _ = writeln!(
        svg,
        "<rect x=\"{x}\" y=\"{y}\" width=\"16\" height=\"12\" fill=\"{NONE}\" stroke=\"#888\"/>"
    );
    text(svg, x + 20.0, TOP - 10.0, "start", "none (dense)");
}

/// White to dark blue.
fn shade(value: f64) -> String {
    let mix = |low: f64| 255.0 + (low - 255.0) * value.clamp(0.0, 1.0);
    format!("rgb({:.0},{:.0},{:.0})", mix(8.0), mix(48.0), mix(107.0))
}

impl Axis {
    pub(super) fn linear(title: &'static str) -> Self {
        Self { title, scale: Scale::Linear }
    }

    pub(super) fn log(title: &'static str) -> Self {
        Self { title, scale: Scale::Log }
    }

    fn holds(&self, value: f64) -> bool {
        value.is_finite() && (self.scale == Scale::Linear || value > 0.0)
    }

    /// Ends of the axis: round numbers, and zero if the values are not far from it.
    fn range(&self, values: impl Iterator<Item = f64>) -> (f64, f64) {
        let (low, high) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(v), h.max(v)));
        if low > high {
            return if self.scale == Scale::Linear { (0.0, 1.0) } else { (1.0, 10.0) };
        }
        match self.scale {
            Scale::Log => {
                let (low, high) = (round_below(low), round_above(high));
                (low, if high > low { high } else { round_above(low * 1.01) })
            }
            Scale::Linear => {
                let low = if low >= 0.0 && low < 0.7 * high { 0.0 } else { low };
                let step = step(if high > low { high - low } else { high.abs().max(1.0) });
                let low = (low / step).floor() * step;
                (low, ((high / step).ceil() * step).max(low + step))
            }
        }
    }

    fn part(&self, value: f64, (low, high): (f64, f64)) -> f64 {
        match self.scale {
            Scale::Linear => (value - low) / (high - low),
            Scale::Log => (value / low).ln() / (high / low).ln(),
        }
    }

    fn ticks(&self, (low, high): (f64, f64)) -> Vec<f64> {
        let mut ticks = Vec::new();
        let step = step(high - low);
        // If there are few decades, also the round numbers in between.
        let decades = high / low >= 2e3;
        let mut at = if self.scale == Scale::Log && decades { 10f64.powf(low.log10().ceil()) } else { low };
        while at <= high * (1.0 + 1e-9) + f64::MIN_POSITIVE && ticks.len() < 40 {
            ticks.push(at);
            at = match self.scale {
                Scale::Linear => at + step,
                Scale::Log if decades => at * 10.0,
                Scale::Log => round_above(at * 1.01),
            };
        }
        ticks
    }
}

/// The smallest number of the form 1, 2 or 5 times a power of ten that is at least `value`.
fn round_above(value: f64) -> f64 {
    let power = 10f64.powf(value.log10().floor());
    let times = [1.0, 2.0, 5.0, 10.0].into_iter().find(|times| times * power >= value * (1.0 - 1e-9));
    times.unwrap_or(10.0) * power
}

/// The largest number of that form that is at most `value`.
fn round_below(value: f64) -> f64 {
    1.0 / round_above(1.0 / value)
}

/// A step of 1, 2 or 5 times a power of ten, of which about five make up `span`.
fn step(span: f64) -> f64 {
    let rough = span / 5.0;
    round_above(rough * 0.999)
}

/// The number with few digits.
pub(super) fn number(value: f64) -> String {
    let size = value.abs();
    if size >= 1e15 {
        format!("{:.0}P", value / 1e15)
    } else if size >= 1e12 {
        format!("{:.0}T", value / 1e12)
    } else if size >= 1e9 {
        format!("{:.0}G", value / 1e9)
    } else if size >= 1e6 {
        format!("{:.0}M", value / 1e6)
    } else if size >= 1e4 {
        format!("{:.0}k", value / 1e3)
    } else if !(1e-9..10.0).contains(&size) {
        format!("{value:.0}")
    } else if size >= 0.1 {
        format!("{}", (value * 100.0).round() / 100.0)
    } else {
        format!("{value:.0e}")
    }
}

/// Three digits and the unit.
pub(super) fn quantity(value: f64, unit: &str) -> String {
    let scales = [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")];
    let (scale, prefix) = scales.into_iter().find(|(scale, _)| value >= *scale).unwrap_or((1.0, ""));
    let scaled = value / scale;
    let digits = if scaled < 9.995 { 2 } else { usize::from(scaled < 99.95) };
    format!("{scaled:.digits$} {prefix}{unit}")
}

fn open(width: f64, height: f64) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    )
}

/// Adds a picture's title.
fn heading(svg: &mut String, title: &str) {
    let title = escaped(title);
    let _ = writeln!(svg, "<text x=\"8\" y=\"18\" font-weight=\"bold\">{title}</text>");
}

/// Adds a text.
pub(super) fn text(svg: &mut String, x: f64, y: f64, anchor: &str, text: &str) {
    let _ =
        writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{}</text>", escaped(text));
}

/// Text escaped for XML and HTML.
pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_end_on_round_numbers() {
        let linear = Axis::linear("x");
        assert_eq!(linear.range([0.3, 0.95].into_iter()), (0.0, 1.0));
        assert_eq!(linear.range([103.0, 104.0].into_iter()), (103.0, 104.0));
        assert_eq!(linear.range([].into_iter()), (0.0, 1.0));
        let log = Axis::log("x");
        assert_eq!(log.range([21.0, 700.0].into_iter()), (20.0, 1000.0));
        assert_eq!(log.range([300.0].into_iter()), (200.0, 500.0));
        let shown = |ticks: Vec<f64>| ticks.into_iter().map(number).collect::<Vec<_>>().join(" ");
        assert_eq!(shown(log.ticks((20.0, 1000.0))), "20 50 100 200 500 1000");
        assert_eq!(shown(log.ticks((2.0, 200_000.0))), "10 100 1000 10k 100k");
        assert!(!Axis::log("x").holds(0.0) && !linear.holds(f64::NAN));
    }

    #[test]
    fn points_are_where_their_values_are() {
        let series = Series { name: "a < b".into(), points: vec![(0.0, 0.0), (1.0, 1.0)], joined: true };
        let svg = chart("t", &Axis::linear("x"), &Axis::linear("y"), &[series]);
        assert!(svg.contains("M80.0 416.0L720.0 56.0"), "{svg}");
        assert!(svg.contains("a &lt; b") && svg.ends_with("</svg>\n"));
    }

    #[test]
    fn cells_go_from_white_to_dark() {
        let (x, y) = (Labels::counted("x", 3), Labels::counted("y", 1));
        let svg = heat_map("t", &x, &y, &[vec![0.0, 1.0, f64::NAN]]);
        for fill in ["rgb(255,255,255)", "rgb(8,48,107)", "#ccc"] {
            assert!(svg.contains(fill), "{svg}");
        }
    }

    #[test]
    fn labels_have_room() {
        let labels = Labels::counted("blocks", 256);
        let shown: Vec<_> = labels.shown(2.5, 34.0).map(|(_, label)| &**label).take(3).collect();
        assert_eq!(shown, ["0", "20", "40"]);
        assert_eq!(labels.shown(36.0, 34.0).count(), 256);
    }

    #[test]
    fn series_are_told_apart_and_named_inside_the_picture() {
        let series =
            |i: usize| Series { name: format!("s{i}"), points: vec![(1.0, i as f64)], joined: false };
        let all: Vec<Series> = (0..35).map(series).collect();
        let svg = chart("t", &Axis::linear("x"), &Axis::linear("y"), &all);
        let look = |name: &str| {
            let line = svg.lines().find(|line| line.ends_with(&format!("<title>{name}</title></path>")));
            line.map(|line| line.split_once('l').map(|(_, form)| form.to_owned()))
        };
        assert_eq!(look("s9"), None);
        assert!(look("s21").is_some() && look("s21") != look("s31"));
        let height: f64 = svg.split("height=\"").nth(1).unwrap().split('"').next().unwrap().parse().unwrap();
        assert!(height > TOP + 34.5 * LINE, "{height}");
    }

    #[test]
    fn quantities_have_three_digits() {
        let shown = [4.555e12, 50e12, 636e12, 999.9e9, 8192.0].map(|value| quantity(value, "B/s"));
        assert_eq!(shown.join(", "), "4.55 TB/s, 50.0 TB/s, 636 TB/s, 1000 GB/s, 8.19 kB/s");
    }

    #[test]
    fn numbers_are_short() {
        let shown: Vec<_> = [0.0, 0.5, 12.3, 8192.0, 131_072.0, 4.5e12, 1e-3].map(number).into();
        assert_eq!(shown, ["0", "0.5", "12", "8192", "131k", "4T", "1e-3"]);
    }
}
