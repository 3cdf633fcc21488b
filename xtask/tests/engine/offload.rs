//! `bench offload` on a model of one small layer.

use std::fs;
use std::process::Stdio;

use serde_json::Value;

use crate::{text, xtask};

const PLAN: &str = r#"(
    layers: 1, hidden: 64, inner: 64, heads: 2, kv_heads: 1, head_dim: 64, block_size: 16,
    context: 2048, select: 0.1, policies: ["quest"], pools: [0.5], pool: 0.375, turnovers: [0], turnover: 10,
    batch: 2, short: 1024, warm_up: 2, steps: 3, streamed_steps: 1, disk_blocks: 80,
)"#;

#[test]
fn rows_say_what_moved() {
    let folder = tempfile::tempdir().unwrap();
    let plan = folder.path().join("plan.ron");
    fs::write(&plan, PLAN).unwrap();
    let mut bench = xtask("bench");
    bench.args(["offload", "--plan"]).arg(&plan).arg("--out").arg(folder.path());
    let output = bench.stdout(Stdio::piped()).stderr(Stdio::piped()).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let lines: Vec<Value> =
        text(&output.stdout).lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    let (disk, rows) = lines.split_last().unwrap();
    let median = |row: &Value, name: &str| {
        let [low, median, high] = ["low", "median", "high"].map(|of| row[name][of].as_f64().unwrap());
        assert!(low <= median && median <= high, "{name}: {row}");
        median
    };
    assert!(["tier_gb_s", "direct_gb_s", "of_direct"].iter().all(|name| median(disk, name) > 0.0));
    let kinds: Vec<[&str; 2]> =
        rows.iter().map(|row| ["workload", "tier"].map(|key| row[key].as_str().unwrap())).collect();
    let single = |tier| ["single", tier];
    assert_eq!(
        kinds,
        [
            single("streamed"),
            single("resident"),
            single("host"),
            single("resident"),
            single("host"),
            single("host"),
            ["batch", "resident"],
            ["batch", "host"],
            ["short", "resident"],
            ["short", "host"],
        ]
    );
    // The whole context streams in every step; what is selected moves only as far as it changes.
    let bytes = |row: usize| rows[row]["bytes"].as_f64().unwrap();
    assert!(bytes(0) > 10.0 * bytes(4) && bytes(4) > bytes(2), "{rows:?}");
    assert!(bytes(1) + bytes(3) == 0.0);
    let turnover = |row: usize| rows[row]["turnover"].as_f64().unwrap();
    assert!(turnover(2) < 3.0 && (6.0..16.0).contains(&turnover(4)), "{} {}", turnover(2), turnover(4));
    assert!(rows[4]["of_resident"].is_number() && rows[4]["of_streamed"].is_number());
    assert!((0.0..=1.0).contains(&median(&rows[4], "hidden")) && rows[0]["hidden"].is_null());
    median(&rows[4], "longer_ms");
    let written: Value =
        serde_json::from_slice(&fs::read(folder.path().join("offload.json")).unwrap()).unwrap();
    assert_eq!((&written["rows"], &written["disk"]), (&Value::Array(rows.to_vec()), disk));
}
