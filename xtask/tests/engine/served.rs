//! `bench serve`, and its plan of a restart: a tiny model behind HTTP.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::redis::Redis;
use crate::{refused, run, tiny};

const WORKLOAD: &str = r#"
// Conversations that begin alike.
Workload(
    name: "test",
    seed: 5,
    requests: 6,
    arrivals: Poisson(per_second: 20.0),
    classes: [Class(weight: 1, prompt: (8, 40), output: (5, 9))],
    shared_prefix: SharedPrefix(prefixes: 1, tokens: 32),
    turns: Turns(more: (1, 2), prompt: (20, 30), think_s: 0.01),
)
"#;

fn workload(folder: &Path) -> std::path::PathBuf {
    let file = folder.join("test.ron");
    fs::write(&file, WORKLOAD).unwrap();
    file
}

#[test]
fn conversations_are_served_and_told() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let mut bench = tiny("bench");
    bench.args(["serve", "--kv-memory", "16MiB", "--rates", "10,40", "--slo", "ttft=100s,itl=1ms"]);
    let rows = run(bench.arg("--workload").arg(workload(folder.path())).arg("--out").arg(&out));
    assert_eq!(rows.len(), 2, "{rows:?}");
    for (row, rate) in rows.iter().zip([10.0, 40.0]) {
        let number = |key: &str| row[key].as_f64().unwrap_or_else(|| panic!("{key} in {row}"));
        assert_eq!((row["workload"].as_str(), row["form"].as_str()), (Some("test"), Some("ids")));
        assert_eq!((number("offered_per_s"), &row["failed"], &row["error"]), (rate, &0.into(), &Value::Null));
        assert!((12.0..=18.0).contains(&number("requests")), "{row}");
        let tokens = number("output_tokens") / number("requests");
        assert!((5.0..=9.0).contains(&tokens), "ignore_eos and max_tokens hold: {row}");
        // Later turns find what was said before, and all but the first conversation the prefix.
        assert!((0.4..0.99).contains(&number("hit_rate")), "{row}");
        assert!(row["adapter"]["name"].is_string());
        for times in ["ttft_ms", "inter_token_ms", "per_token_ms", "latency_ms"] {
            let [p50, p90, p99] = ["p50", "p90", "p99"].map(|p| row[times][p].as_f64().unwrap());
            assert!(0.0 < p50 && p50 <= p90 && p90 <= p99, "{times}: {p50}, {p90}, {p99}");
        }
        assert!(number("good") <= number("requests") && row["slo"] == "ttft=100000ms,itl=1ms");
    }
    let saved: Value = serde_json::from_slice(&fs::read(out.join("serve.json")).unwrap()).unwrap();
    let sent = saved[1]["sent"].as_array().unwrap();
    assert_eq!(sent.len(), usize::try_from(rows[1]["requests"].as_u64().unwrap()).unwrap());
    // An answer in ids comes token by token.
    let gaps = |answer: &Value| answer["gaps_ms"].as_array().unwrap().len();
    assert!(sent.iter().any(|answer| answer["output_tokens"] == gaps(answer) + 1), "{sent:?}");
}

/// Requests that are under way on the engine that is lost go on, on it once it has a device again or on the other one.
#[test]
fn a_device_that_is_lost_under_load_fails_no_request() {
    let folder = tempfile::tempdir().unwrap();
    let load = WORKLOAD.replace("(5, 9)", "(60, 60)");
    let file = folder.path().join("long.ron");
    fs::write(&file, load).unwrap();
    let mut bench = tiny("bench");
    bench.args(["serve", "--kv-memory", "16MiB", "--device", "0,0", "--lose", "1@0.3", "--workload"]);
    let row = run(bench.arg(&file)).remove(0);
    assert_eq!((&row["failed"], &row["error"]), (&0.into(), &Value::Null), "{row}");
    let requests = row["requests"].as_u64().unwrap();
    assert_eq!(row["output_tokens"], 60 * requests, "no token is missing or sent twice: {row}");
    let said = refused(tiny("bench").args(["serve", "--lose", "1@0", "--workload"]).arg(&file), 1);
    assert!(said.contains("--lose: there is no engine 1, the server has 1"), "{said}");
}

#[test]
fn servers_that_are_not_there_and_wrong_flags_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let bench = |flags: &[&str], code| refused(tiny("bench").arg("serve").args(flags), code);
    let said = bench(&["--url", "http://127.0.0.1:9/v1"], 1);
    assert!(said.contains("http://127.0.0.1:9/v1/models"), "{said}");
    let said = bench(&["--url", "http://127.0.0.1:9/v1", "--api-key-env", "NO_SUCH_VARIABLE"], 1);
    assert!(said.contains("--api-key-env NO_SUCH_VARIABLE"), "{said}");
    for (flag, value, says) in [
        ("--url", "ftp://a", "does not begin with http://"),
        ("--slo", "ttft=5", "is not NAME=TIME"),
        ("--rates", "1,0", "0 is not above 0"),
        ("--lose", "1", "is not ENGINE@SECONDS"),
    ] {
        let said = bench(&[flag, value], 2);
        assert!(said.contains(says), "{said}");
    }
    let file = workload(folder.path());
    let said = refused(tiny("bench").arg("e2e").arg("--workload").arg(&file), 1);
    assert!(said.contains("workload test: conversations, turns, are for bench serve"), "{said}");
}

#[cfg(unix)]
#[test]
fn a_killed_server_restores_what_it_had() {
    check_restart(&[]);
}

#[cfg(unix)]
#[test]
fn another_server_finds_what_is_in_a_store() {
    let redis = Redis::start();
    check_restart(&["--kv-tiers", &redis.spec()]);
}

#[cfg(unix)]
fn check_restart(flags: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let plan = folder.path().join("plan.ron");
    fs::write(&plan, "(seed: 3, prompts: [64, 320], repeats: 1)").unwrap();
    let mut bench = tiny("bench");
    bench.args(["serve", "--kv-memory", "16MiB"]).args(flags);
    let rows = run(bench.arg("--plan").arg(plan).arg("--out").arg(folder.path()));
    assert_eq!(rows.len(), 2, "{rows:?}");
    for (row, tokens) in rows.iter().zip([64, 320]) {
        assert_eq!(row["prompt_tokens"], tokens);
        // All full blocks but one that holds the last token.
        assert_eq!(row["restored_tokens"], tokens - 16, "{row}");
        for times in ["cold_ms", "warm_ms", "restored_ms"] {
            assert!(row[times]["median"].as_f64().unwrap() > 0.0, "{row}");
        }
    }
    let saved: Value =
        serde_json::from_slice(&fs::read(folder.path().join("restart.json")).unwrap()).unwrap();
    assert_eq!(saved, Value::Array(rows));
}
