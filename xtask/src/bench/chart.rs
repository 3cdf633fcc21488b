//! The load over time as SVG: blocks in use above, running and waiting requests below.

use std::fmt::Write;

use super::replay::Usage;
use super::svg::text;

const WIDTH: f64 = 800.0;
const HEIGHT: f64 = 160.0;
const LEFT: f64 = 60.0;
const TOP: f64 = 40.0;
const GAP: f64 = 50.0;

/// One line of a panel.
struct Line<'a> {
    name: &'a str,
    color: &'a str,
    /// `(seconds, value)`, constant until the next.
    points: Vec<(f64, f64)>,
}

/// Draws the load; `pool_blocks` is the top of the upper panel.
pub(super) fn draw(title: &str, usage: &[Usage], pool_blocks: u32) -> String {
    let end = usage.last().map_or(1.0, |last| last.at_s).max(1e-9);
    let line = |name, color, value: &dyn Fn(&Usage) -> u32| Line {
        name,
        color,
        points: usage.iter().map(|at| (at.at_s, f64::from(value(at)))).collect(),
    };
    let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let blocks = line("blocks in use", "#1b6ca8", &|at| at.blocks);
    let requests = [
        line("running", "#2a9d5c", &|at| count(at.running)),
        line("waiting", "#d1495b", &|at| count(at.waiting)),
    ];
    let most = requests.iter().flat_map(|line| &line.points).map(|(_, v)| *v).fold(1.0, f64::max);
    let (width, height) = (LEFT + WIDTH + 20.0, TOP + 2.0 * HEIGHT + GAP + 40.0);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    text(&mut svg, LEFT, 20.0, "start", title);
    panel(&mut svg, TOP, (end, f64::from(pool_blocks.max(1))), &[blocks]);
    panel(&mut svg, TOP + HEIGHT + GAP, (end, most), &requests);
    text(&mut svg, LEFT, height - 10.0, "start", "0 s");
    text(&mut svg, LEFT + WIDTH, height - 10.0, "end", &format!("{end:.1} s"));
    svg.push_str("</svg>\n");
    svg
}

fn panel(svg: &mut String, top: f64, (end, most): (f64, f64), lines: &[Line<'_>]) {
    let bottom = top + HEIGHT;
    let _ =
        writeln!(svg, "<path d=\"M{LEFT} {top}V{bottom}H{}\" fill=\"none\" stroke=\"#888\"/>", LEFT + WIDTH);
    text(svg, LEFT - 6.0, top + 4.0, "end", &format!("{most}"));
    text(svg, LEFT - 6.0, bottom, "end", "0");
    for (index, line) in (0_u32..).zip(lines) {
        let mut path = String::new();
        for (step, (at, value)) in line.points.iter().enumerate() {
            let (x, y) = (LEFT + at / end * WIDTH, bottom - value / most * HEIGHT);
            let _ = if step == 0 { write!(path, "M{x:.1} {y:.1}") } else { write!(path, "H{x:.1}V{y:.1}") };
        }
        let color = line.color;
        let _ = writeln!(svg, "<path d=\"{path}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"1.5\"/>");
        let x = LEFT + 10.0 + 130.0 * f64::from(index);
        let _ = writeln!(svg, "<path d=\"M{x} {}h16\" stroke=\"{color}\" stroke-width=\"3\"/>", top - 8.0);
        text(svg, x + 22.0, top - 4.0, "start", line.name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_steps_over_time() {
        let at = |at_s, blocks, waiting| Usage { at_s, blocks, running: 1, waiting };
        let svg = draw("a < b", &[at(0.0, 0, 2), at(1.0, 8, 0), at(2.0, 4, 0)], 8);
        // 8 blocks are the top of the panel, 4 its middle.
        assert!(svg.contains("M60.0 200.0H460.0V40.0H860.0V120.0"), "{svg}");
        assert!(svg.contains("M60.0 250.0H460.0V410.0H860.0V410.0"), "{svg}");
        assert!(svg.contains("a &lt; b") && svg.ends_with("</svg>\n"));
        assert!(draw("nothing", &[], 0).contains("</svg>"));
    }
}
