//! The rows as SVG: speed and hidden share by pool, speed by turnover. Where a table prints an interval, the chart draws it.

use super::Row;
use crate::bench::chart::{Axis, Join, Point, Series, chart};
use crate::bench::paired::Median;

/// `(file, text)` of each chart.
pub(super) fn draw(rows: &[Row]) -> Vec<(&'static str, String)> {
    let usual = usual_turnover(rows);
    let single = |row: &&Row| row.workload == "single" && row.tier != "streamed";
    let pools = |row: &Row| {
        let near = row.turnover.zip(usual).is_some_and(|(turnover, usual)| (turnover - usual).abs() < 1e-9);
        near.then_some(row.pool).flatten().map(|pool| 100.0 * pool)
    };
    let turnovers = |row: &Row| row.turnover;
    let hosts = || rows.iter().filter(single).filter(|row| row.tier == "host");
    let pool = Axis::log("device pool, % of the context");
    let turnover = Axis::linear("selected blocks that change a step, %");
    let percent = |part: f64| exact(100.0 * part);
    vec![
        (
            "offload-pools.svg",
            chart(
                "Decode over everything resident, by device pool",
                &pool,
                &Axis::linear("% of the resident speed"),
                series(hosts(), pools, |row| row.of_resident.map(percent)),
            ),
        ),
        (
            "offload-waits.svg",
            chart(
                "Waits for fetches, by device pool",
                &pool,
                &Axis::linear("ms a step"),
                series(hosts(), pools, |row| row.wait_ms.map(exact)),
            ),
        ),
        (
            "offload-turnover.svg",
            chart(
                "Decode by turnover of the selection",
                &turnover,
                &Axis::linear("tokens a second"),
                series(rows.iter().filter(single), turnovers, |row| Some(tok_s(row))),
            ),
        ),
        (
            "offload-hidden.svg",
            chart(
                "Transfer time that is hidden, by turnover of the selection",
                &turnover,
                &Axis::linear("%"),
                series(hosts(), turnovers, |row| row.hidden.map(|part| part.rising(|part| 100.0 * part))),
            ),
        ),
    ]
}

/// A value of which no interval was measured.
fn exact(value: f64) -> Median {
    Median { median: value, low: value, high: value }
}

/// Decoded tokens per second, with the interval of the step times.
fn tok_s(row: &Row) -> Median {
    row.step_ms.falling(|ms| row.tok_s * row.step_ms.median / ms)
}

/// The turnover that several pools were measured at.
fn usual_turnover(rows: &[Row]) -> Option<f64> {
    let hosts: Vec<&Row> = rows.iter().filter(|row| row.workload == "single" && row.tier == "host").collect();
    let pools = |turnover: f64| hosts.iter().filter(|row| row.turnover == Some(turnover)).count();
    hosts.iter().filter_map(|row| row.turnover).max_by_key(|turnover| pools(*turnover))
}

/// A series for each tier and policy, by x.
fn series<'a>(
    rows: impl Iterator<Item = &'a Row>,
    x: impl Fn(&Row) -> Option<f64>,
    y: impl Fn(&Row) -> Option<Median>,
) -> Vec<Series> {
    let mut all: Vec<Series> = Vec::new();
    for row in rows {
        let Some((x, y)) = x(row).zip(y(row)) else { continue };
        let interval = (y.low < y.high).then_some([y.low, y.high]);
        let point = Point { x, y: y.median, interval };
        let name = format!("{}, {}", row.tier, row.policy.split(':').next().unwrap_or_default());
        match all.iter_mut().find(|series| series.name == name) {
            Some(series) => series.points.push(point),
            None => all.push(Series { name, points: vec![point], join: Join::Line }),
        }
    }
    for series in &mut all {
        series.points.sort_by(|a, b| a.x.total_cmp(&b.x));
        series.points.dedup_by(|a, b| a.x == b.x);
    }
    all
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn row(tier: &'static str, pool: Option<f64>, turnover: f64, tok_s: f64) -> Row {
        Row {
            adapter: String::new(),
            driver: String::new(),
            workload: "single",
            tier,
            policy: "quest:page_budget=4".into(),
            streams: 1,
            context: 64,
            pool,
            turnover: Some(turnover),
            tok_s,
            step_ms: Median { median: 1.0, low: 0.8, high: 1.25 },
            bytes: 0.0,
            pages: [0.0; 3],
            wait_ms: Some(0.5),
            hidden_ahead: None,
            fetch_gb_s: None,
            of_resident: Some(tok_s / 100.0),
            of_streamed: None,
            decisions_ms: None,
            longer_ms: None,
            hidden: Some(Median::of([0.9])),
            hidden_with_decisions: None,
            kernel_ms: BTreeMap::new(),
        }
    }

    #[test]
    fn points_are_sorted_and_pools_share_a_turnover() {
        let rows = [
            row("resident", None, 2.0, 100.0),
            row("host", Some(0.5), 2.0, 90.0),
            row("host", Some(0.125), 2.0, 80.0),
            row("host", Some(0.125), 10.0, 50.0),
        ];
        assert_eq!(usual_turnover(&rows), Some(2.0));
        let by_turnover = series(rows.iter(), |row| row.turnover, |row| Some(tok_s(row)));
        let points: Vec<_> =
            by_turnover.iter().map(|series| (series.name.as_str(), series.points.len())).collect();
        assert_eq!(points, [("resident, quest", 1), ("host, quest", 2)]);
        assert_eq!(by_turnover[0].points[0].interval, Some([80.0, 125.0]));
        assert!(draw(&rows).iter().all(|(_, svg)| svg.contains("host, quest")));
    }
}
