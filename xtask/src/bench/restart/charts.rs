//! The chart of `bench restart`.

use super::Row;
use crate::bench::chart::{self, Axis, Join, Point, Series};
use crate::bench::paired::Median;

/// Times to the first token over the lengths of prompts.
pub(super) fn times(adapter: &str, rows: &[Row]) -> String {
    let series = |name: &str, of: fn(&Row) -> Median| {
        let point = |row: &Row| {
            let Median { median, low, high } = of(row);
            Point { x: row.prompt_tokens.into(), y: median, interval: Some([low, high]) }
        };
        Series { name: name.into(), points: rows.iter().map(point).collect(), join: Join::Line }
    };
    let all = vec![
        series("cold", |row| row.cold_ms),
        series("restored from disk", |row| row.restored_ms),
        series("warm", |row| row.warm_ms),
    ];
    let (x, y) = (Axis::log("prompt tokens"), Axis::log("first token, ms"));
    chart::chart(&format!("A restart, {adapter}"), &x, &y, all)
}
