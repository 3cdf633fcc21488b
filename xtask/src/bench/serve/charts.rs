//! Charts of `bench serve`: latencies of a load, and latencies and goodput over the rates of a sweep.

use super::load::Sent;
use super::row::Row;
use crate::bench::chart::{self, Axis, Join, Panel, Point, Series};
use crate::bench::percentiles::Percentiles;

/// The requests of a load over time, and the shares of its times below each limit.
pub(super) fn load(title: &str, row: &Row) -> String {
    let answers = || row.sent.iter().filter(|sent| sent.answer.error.is_none());
    let over_time = |name: &str, of: fn(&Sent) -> Option<f64>| {
        let points = answers().filter_map(|sent| Some((sent.at_s, of(sent)?).into())).collect();
        Series { name: name.into(), points, join: Join::Apart }
    };
    let first = |sent: &Sent| sent.answer.first_ms;
    let time = vec![over_time("first token", first), over_time("whole", |sent| Some(sent.answer.e2e_ms))];
    let shares = vec![
        distribution("first token", answers().filter_map(first).collect()),
        distribution("between tokens", answers().flat_map(|sent| sent.answer.gaps_ms.clone()).collect()),
        distribution("whole", answers().map(|sent| sent.answer.e2e_ms).collect()),
    ];
    chart::panels(
        title,
        &[
            Panel { x: Axis::linear("seconds"), y: Axis::log("ms"), series: time, height: 260 },
            Panel { x: Axis::log("ms"), y: Axis::linear("share of the times"), series: shares, height: 260 },
        ],
    )
}

/// Share of the values up to each.
fn distribution(name: &str, mut values: Vec<f64>) -> Series {
    values.sort_by(f64::total_cmp);
    let n = values.len() as f64;
    let points = values.iter().enumerate().map(|(rank, value)| (*value, (rank + 1) as f64 / n).into());
    Series { name: name.into(), points: points.collect(), join: Join::Steps }
}

/// Latencies over the rates of a workload, and goodput where limits were given.
pub(super) fn sweep(title: &str, rows: &[&Row]) -> String {
    let over_rates = |name: &str, of: &dyn Fn(&Row) -> Option<f64>| {
        let points: Vec<Point> =
            rows.iter().filter_map(|row| Some((row.offered_per_s?, of(row)?).into())).collect();
        Series { name: name.into(), points, join: Join::Line }
    };
    let three = |of: fn(&Row) -> Percentiles| {
        vec![
            over_rates("p50", &|row| Some(of(row).p50)),
            over_rates("p90", &|row| Some(of(row).p90)),
            over_rates("p99", &|row| Some(of(row).p99)),
        ]
    };
    let x = || Axis::linear("requests a second, offered");
    let panel = |y, series| Panel { x: x(), y, series, height: 240 };
    let mut panels = vec![
        panel(Axis::log("first token, ms"), three(|row| row.ttft_ms)),
        panel(Axis::log("between tokens, ms"), three(|row| row.inter_token_ms)),
    ];
    if rows.iter().any(|row| row.goodput_per_s.is_some()) {
        let good = over_rates("within the limits", &|row| row.goodput_per_s);
        let offered = over_rates("offered", &|row| row.offered_per_s);
        panels.push(panel(Axis::linear("requests a second, good"), vec![good, offered]));
    }
    chart::panels(title, &panels)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::serve::client::Answer;
    use crate::bench::serve::prompt::Form;
    use crate::bench::serve::row::Setting;

    fn row(rate: f64) -> Row {
        let answer =
            Answer { first_ms: Some(10.0), gaps_ms: vec![1.0, 2.0], e2e_ms: 13.0, ..Answer::default() };
        let setting = Setting {
            url: None,
            model: "m".into(),
            form: Form::Ids,
            adapter: None,
            slo: Some("ttft=1s".parse().unwrap()),
        };
        Row::new(&setting, "test", Some(rate), vec![Sent { at_s: 0.5, answer }])
    }

    #[test]
    fn loads_and_sweeps_are_drawn() {
        let svg = load("one load", &row(1.0));
        // Two points over time, and three distributions.
        assert_eq!(svg.matches("<circle").count(), 2 + 2 + 3, "{svg}");
        let rows = [row(1.0), row(2.0)];
        let svg = sweep("a sweep", &rows.iter().collect::<Vec<_>>());
        assert!(svg.contains("requests a second, good") && svg.contains("p99"), "{svg}");
        // Eight lines of two points, and their marks in the legends.
        assert_eq!(svg.matches("<circle").count(), 8 * 3);
    }
}
