//! `bench e2e` with contexts larger than the device pool.

use std::fs;

use serde_json::Value;

use crate::{run, xtask};

const PLAN: &str = r#"(configurations: [
    (random: "tiny-llama:f32,layers=1,alike=20", sparse: "quest:page_budget=6,dense_layers=0", rows: ["1x1000+16"]),
    (random: "tiny-llama:f32,layers=1,alike=20", sparse: "quest:page_budget=6,dense_layers=0", pool: 0.8, control: true,
        rows: ["1x1000+16"]),
    (random: "tiny-llama:f32,layers=1,alike=20", sparse: "quest:page_budget=6,dense_layers=0", pool: 0.8,
        rows: ["1x1000+16"]),
    (random: "tiny-llama:f32,layers=1,alike=20", pool: 0.8, rows: ["1x1000+4"]),
])"#;

#[test]
fn rows_say_what_moved() {
    let folder = tempfile::tempdir().unwrap();
    let plan = folder.path().join("plan.ron");
    fs::write(&plan, PLAN).unwrap();
    let rows = run(xtask("bench").args(["e2e", "--quick", "--plan"]).arg(&plan));
    let [resident, control, host, streamed] = &rows[..] else { panic!("{rows:?}") };
    let configuration = control["configuration"].as_str().unwrap();
    assert!(configuration.contains(" control ") && configuration.ends_with(" pool 80 %"), "{control}");
    let number = |row: &Value, name: &str| row[name].as_f64().unwrap_or_else(|| panic!("{name} in {row}"));
    assert!(resident["bytes"].is_null() && number(control, "bytes") > 0.0);
    // The whole context streams in every step without a policy; with one, no more moves than is selected.
    assert!(number(streamed, "bytes") > 2.0 * number(host, "bytes"), "{rows:?}");
    assert!(host["of_resident"]["decode"].is_number() && number(host, "fetch_gb_s") > 0.0, "{host}");
    for share in ["hidden", "hidden_with_decisions"] {
        assert!((0.0..=1.0).contains(&number(host, share)), "{host}");
    }
    number(host, "longer_ms");
    number(host, "decisions_ms");
    assert!(control["longer_ms"].is_null() && streamed["fetch_gb_s"].is_null(), "{rows:?}");
}
