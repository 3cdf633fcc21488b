use std::collections::BTreeSet;

use proptest::prelude::*;

use super::heat_map::shade;
use super::*;

fn series(name: &str, points: Vec<Point>, join: Join) -> Series {
    Series { name: name.into(), points, join }
}

/// Values of an attribute in the elements of a name.
fn attributes<'a>(svg: &'a str, element: &str, name: &str) -> Vec<&'a str> {
    let (open, attribute) = (format!("<{element} "), format!(" {name}=\""));
    let lines = svg.lines().filter(|line| line.starts_with(&open));
    lines.filter_map(|line| line.split(&attribute).nth(1)?.split('"').next()).collect()
}

#[test]
fn axes_end_on_round_numbers() {
    let ends = |axis: &Axis, values: &[f64]| {
        let axis = axis.over(values.iter().copied());
        (axis.low, axis.high)
    };
    let (linear, log) = (Axis::linear("x"), Axis::log("x"));
    assert_eq!(ends(&linear, &[0.3, 0.95]), (0.0, 1.0));
    assert_eq!(ends(&linear, &[103.0, 104.0]), (103.0, 104.0));
    assert_eq!(ends(&linear, &[]), (0.0, 1.0));
    assert_eq!(ends(&log, &[21.0, 700.0]), (20.0, 1000.0));
    assert_eq!(ends(&log, &[300.0]), (200.0, 500.0));
    assert!(!log.holds(0.0) && !linear.holds(f64::NAN));
}

#[test]
fn ticks_are_round_and_short() {
    let shown = |axis: Axis, values: &[f64]| {
        let axis = axis.over(values.iter().copied());
        axis.ticks().into_iter().map(|tick| axis.label(tick)).collect::<Vec<_>>().join(" ")
    };
    let drawn = [
        shown(Axis::log("x"), &[21.0, 700.0]),
        shown(Axis::log("x"), &[2.0, 200_000.0]),
        shown(Axis::log("x"), &[0.003, 0.2]),
        shown(Axis::linear("x"), &[0.3, 0.95]),
        shown(Axis::linear("x"), &[103.0, 104.0]),
        shown(Axis::linear("x"), &[0.0, 131_072.0]),
        shown(Axis::linear("x"), &[-0.004, 0.02]),
    ];
    insta::assert_snapshot!(drawn.join("\n"), @"
    20 50 100 200 500 1000
    10 100 1000 10k 100k
    0.002 0.005 0.01 0.02 0.05 0.1 0.2
    0 0.2 0.4 0.6 0.8 1.0
    103.0 103.2 103.4 103.6 103.8 104.0
    0 50k 100k 150k
    -0.005 0 0.005 0.010 0.015 0.020
    ");
}

proptest! {
    /// Whatever was measured, two ticks or more have labels that differ, and the ends hold all values.
    #[test]
    fn every_axis_has_ticks(values in prop::collection::vec(-1e9..1e9, 0..5), log in any::<bool>(), scale in -12..12) {
        let axis = if log { Axis::log("x") } else { Axis::linear("x") };
        let values: Vec<f64> = values.into_iter().map(|value| value * 10f64.powi(scale)).collect();
        let values: Vec<f64> = values.into_iter().filter(|value| axis.holds(*value)).collect();
        let scaled = axis.over(values.iter().copied());
        let ticks = scaled.ticks();
        prop_assert!((2..=40).contains(&ticks.len()), "{scaled:?}: {ticks:?}");
        let labels: BTreeSet<String> = ticks.iter().map(|tick| scaled.label(*tick)).collect();
        prop_assert_eq!(labels.len(), ticks.len(), "{:?}: {:?}", scaled, labels);
        for value in values {
            let slack = 1e-9 * (scaled.high - scaled.low);
            prop_assert!(scaled.low - slack <= value && value <= scaled.high + slack, "{value} in {scaled:?}");
        }
    }
}

#[test]
fn points_intervals_and_lines_are_where_their_values_are() {
    let points = vec![Point { interval: Some([0.25, 1.0]), ..(0.0, 0.5).into() }, (1.0, 1.0).into()];
    let svg =
        chart("a < b", &Axis::linear("x"), &Axis::linear("y"), vec![series("s & t", points, Join::Line)]);
    // The plot is from (86, 44) to (709, 395).
    assert_eq!(attributes(&svg, "polyline", "points").last(), Some(&"86,220 709,44 "), "{svg}");
    let color = "#2F7DC4";
    let bars: Vec<&str> = svg.lines().filter(|l| l.starts_with("<line") && l.contains(color)).collect();
    let at = |line: &str, part: &str| {
        line.split(&format!(" {part}=\"")).nth(1).unwrap().split('"').next().unwrap().to_string()
    };
    let ends: Vec<[String; 4]> =
        bars.iter().map(|line| ["x1", "y1", "x2", "y2"].map(|part| at(line, part))).collect();
    assert!(ends.contains(&["86", "307", "86", "44"].map(String::from)), "{ends:?}");
    assert!(svg.contains("a &lt; b") && svg.contains("s &amp; t") && svg.ends_with("</svg>\n"));
}

#[test]
fn steps_keep_a_value_until_the_next() {
    let corners = stairs(&[(0.0, 2.0), (1.0, 5.0), (3.0, 4.0)].map(Point::from));
    assert_eq!(corners, [(0.0, 2.0), (1.0, 2.0), (1.0, 5.0), (3.0, 5.0), (3.0, 4.0)]);
    assert_eq!(stairs(&[]), []);
}

#[test]
fn series_are_told_apart_and_named_inside_the_picture() {
    let all =
        (0..45).map(|i| series(&format!("s{i}"), vec![(1.0, f64::from(i)).into()], Join::Apart)).collect();
    let svg = chart("t", &Axis::linear("x"), &Axis::linear("y"), all);
    let height: f64 = attributes(&svg, "svg", "height")[0].parse().unwrap();
    let lowest =
        attributes(&svg, "text", "y").into_iter().map(|y| y.parse::<f64>().unwrap()).fold(0.0, f64::max);
    assert!(lowest < height, "{lowest} of {height}");
    // Ten colours in four forms; each stands in the plot and in the legend.
    for (element, marks) in [("circle", 20), ("polygon", 50)] {
        assert_eq!(attributes(&svg, element, "fill").len(), marks, "{element}");
    }
    assert!(
        (0..45).all(|i| svg.contains(&format!("\ns{i}\n")) || svg.contains(&format!(">s{i}\n"))),
        "{svg}"
    );
}

#[test]
fn panels_are_one_below_the_other() {
    let panel = |height| Panel { x: Axis::linear("x"), y: Axis::linear("y"), series: Vec::new(), height };
    let svg = panels("t", &[panel(200), panel(300)]);
    assert_eq!(attributes(&svg, "svg", "height"), ["534"]);
}

#[test]
fn cells_go_from_light_to_dark() {
    let (x, y) = (Labels::counted("x", 3), Labels::counted("y", 1));
    let svg = heat_map("t", &x, &y, &[vec![0.0, 1.0, f64::NAN]]);
    let cells = attributes(&svg, "rect", "fill");
    assert!(cells.ends_with(&["#F2F5FA", "#08306B", "#B4B4B4"]), "{cells:?}");
    assert_eq!(shade(7.0), shade(1.0));
}

#[test]
fn labels_have_room() {
    let labels = Labels::counted("blocks", 256);
    let shown: Vec<_> = labels.shown(2, 34).take(3).collect();
    assert_eq!(shown, [0, 20, 40]);
    assert_eq!(labels.shown(36, 34).count(), 256);
}
