//! `bench e2e` replays a trace of arrivals.

use std::fs;

use crate::{refused, run, tiny};

const WORKLOAD: &str = r#"
// Two bursts of prompts that begin alike, over a pool that is too small for a burst.
Workload(
    name: "test",
    seed: 5,
    requests: 12,
    arrivals: Bursts(size: 6, every_s: 0.2),
    classes: [Class(weight: 1, prompt: (8, 40), output: (20, 30))],
    shared_prefix: SharedPrefix(prefixes: 1, tokens: 32),
    kv_blocks: 14,
)
"#;

#[test]
fn a_trace_is_replayed_and_told() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("test.ron");
    fs::write(&file, WORKLOAD).unwrap();
    let out = folder.path().join("out");
    let mut bench = tiny("bench");
    let rows = run(bench.arg("e2e").arg("--workload").arg(&file).arg("--out").arg(&out));
    let [row] = &rows[..] else { panic!("{rows:?}") };
    let number = |key: &str| row[key].as_f64().unwrap_or_else(|| panic!("{key} in {row}"));
    assert_eq!((&row["workload"], &row["requests"]), (&"test".into(), &12.into()));
    assert!((240.0..=360.0).contains(&number("output_tokens")), "{row}");
    assert!(number("duration_s") >= 0.2, "the second burst comes after 0.2 s");
    assert!(number("preemptions") > 0.0, "13 blocks hold two requests of up to 102 tokens");
    // All but the first of a burst find the prefix, of 32 tokens in prompts of 40 to 72.
    assert!((0.3..0.8).contains(&number("hit_rate")), "{row}");
    assert_eq!((number("pool_blocks"), number("max_blocks") <= 13.0), (13.0, true));
    for times in ["ttft_ms", "inter_token_ms", "latency_ms"] {
        let [p50, p90, p99] = ["p50", "p90", "p99"].map(|p| row[times][p].as_f64().unwrap());
        assert!(0.0 < p50 && p50 <= p90 && p90 <= p99, "{times}: {p50}, {p90}, {p99}");
    }
    assert!(row["latency_ms"]["p50"].as_f64() > row["ttft_ms"]["p50"].as_f64());
    let usage = row["usage"].as_array().unwrap();
    assert!(usage.iter().any(|at| at["waiting"].as_u64() > Some(0)));
    assert_eq!(usage.last().unwrap()["blocks"], 0, "all blocks are given back");

    let saved: serde_json::Value =
        serde_json::from_slice(&fs::read(out.join("trace-test.json")).unwrap()).unwrap();
    assert_eq!(saved, *row);
}

#[test]
fn a_filter_chooses_among_rows_and_workloads() {
    let rows = run(tiny("bench").args(["e2e", "--filter", "tiny-llama bursts"]));
    let [row] = &rows[..] else { panic!("{rows:?}") };
    assert_eq!(row["workload"], "bursts");
    let said = refused(tiny("bench").args(["e2e", "--filter", "q4_k bursts"]), 1);
    let names = "poisson, bursts, long-and-short, shared-prefixes";
    assert!(
        said.contains("leaves no row of tiny-llama, and no workload of") && said.contains(names),
        "{said}"
    );
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("test.ron");
    fs::write(&file, WORKLOAD).unwrap();
    let said = refused(tiny("bench").args(["e2e", "--filter", "bursts"]).arg("--workload").arg(&file), 1);
    assert!(said.contains("--filter leaves no workload of test"), "{said}");
}

#[test]
fn wrong_workloads_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("test.ron");
    let bench = |text: &str| {
        fs::write(&file, text).unwrap();
        refused(tiny("bench").arg("e2e").arg("--workload").arg(&file), 1)
    };
    let said = bench(&WORKLOAD.replace("requests: 12", "requests: 0"));
    assert!(said.contains("test.ron: requests is 0"), "{said}");
    let said = bench(&WORKLOAD.replace("(8, 40)", "(8, 3000)"));
    assert!(said.contains("workload test") && said.contains("pool has 13"), "{said}");
    let said = bench(&WORKLOAD.replace("(8, 40)", "(8, 5000)"));
    assert!(said.contains("the longest request has 5062 tokens, the context length is 4096"), "{said}");
    let said = refused(tiny("bench").args(["e2e", "--workload", "missing.ron"]), 1);
    assert!(said.contains("missing.ron: cannot be read"), "{said}");
}
