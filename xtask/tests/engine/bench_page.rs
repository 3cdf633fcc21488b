//! The page of `bench` in headless Chromium: what every suite writes about a tiny model is drawn.
#![cfg(target_os = "linux")]

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::{habits, run, text, xtask};

const FLAGS: [&str; 7] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--virtual-time-budget=5000",
    "--enable-logging=stderr",
];

/// Suites with flags, and a plan or workload.
const RUNS: [(&[&str], &str, &str); 7] = [
    (
        &["e2e"],
        "--plan",
        r#"(configurations: [(rows: ["1x64+8"]), (sparse: "quest:page_budget=2,block_size=16", rows: ["1x64+8"])])"#,
    ),
    (&["e2e"], "--workload", WORKLOAD),
    (
        &["serve", "--kv-memory", "16MiB", "--rates", "10,40", "--slo", "ttft=100s,itl=1ms"],
        "--workload",
        WORKLOAD,
    ),
    (&["serve", "--kv-memory", "16MiB"], "--plan", "(seed: 3, prompts: [64, 160], repeats: 1)"),
    (
        &["policies"],
        "--plan",
        r#"Turnover(policies: ["quest:page_budget=2,block_size=8"], chunk: 32, text: (tokens: 120, decode_from: 90))"#,
    ),
    (
        &["policies"],
        "--plan",
        r#"(policies: ["full", "quest:page_budget=2,block_size=16"], chunk: 32,
            texts: [(tokens: 67, decode_from: 60), (tokens: 99, decode_from: 90)],
            needles: [(task: pass_key, lengths: [500], depths: [0.1, 0.9], samples: 1)], recalls: [])"#,
    ),
    (
        &["policies", "--report"],
        "--plan",
        r#"Report(policies: ["quest:page_budget={30%/16}"], lengths: [256], kv_dtypes: [f16, int8], scored: 4, answer: 4,
            tasks: [], samples: 1)"#,
    ),
];

const WORKLOAD: &str = r#"Workload(name: "bursts", seed: 5, requests: 6, arrivals: Bursts(size: 3, every_s: 0.1),
    classes: [Class(weight: 1, prompt: (8, 40), output: (5, 9))], shared_prefix: SharedPrefix(prefixes: 1, tokens: 32))"#;

/// The elements that the page makes. Errors of its scripts fail the test.
fn drawn(page: &Path) -> String {
    let profile = tempfile::tempdir().unwrap();
    let mut chromium = Command::new("chromium");
    chromium.args(FLAGS).arg(format!("--user-data-dir={}", profile.path().display()));
    let url = format!("file://{}", page.display());
    let output = chromium.args(["--dump-dom", &url]).output().expect("`cargo xtask test` sets Chromium up");
    let console: Vec<&str> = text(&output.stderr).lines().filter(|line| line.contains("CONSOLE")).collect();
    assert!(console.is_empty(), "{console:#?}");
    let document = text(&output.stdout);
    document.split_once("<main>").unwrap().1.split_once("</main>").unwrap().0.to_owned()
}

#[test]
fn what_every_suite_writes_is_drawn() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    for (args, flag, plan) in RUNS {
        let file = folder.path().join("plan.ron");
        fs::write(&file, plan).unwrap();
        let mut bench = xtask("bench");
        run(bench
            .args(args)
            .arg(flag)
            .arg(&file)
            .arg("--model")
            .arg(habits::MODEL.path())
            .arg("--out")
            .arg(&out));
    }
    run(xtask("bench").args(["kernels", "--quick", "--filter", "softmax"]).arg("--out").arg(&out));
    let page = drawn(&out.join("bench.html"));
    for (suite, titles) in [
        ("e2e", &["Decode, all streams, tok/s", "Kernels of a decode step, µs", " of dense"][..]),
        ("trace", &["KV blocks", "waiting"]),
        (
            "serve",
            &["bursts, 10/s, p99", "requests a second, offered", "times below a limit", "within the limits"],
        ),
        ("restart", &["restored from disk", "prompt tokens"]),
        ("turnover", &["share of new blocks a step", "KV head"]),
        (
            "policies",
            &["Loss against density", "share of pass keys found", "about token", "density, attended"],
        ),
        ("report", &["loss stay with dense attention", "speed of a request, times dense", "KV int8"]),
        ("kernels", &["Roofline", "operations a byte", "Share of what the device does at most, %"]),
    ] {
        let section = page
            .split_once(&format!("data-suite=\"{suite}\""))
            .unwrap_or_else(|| panic!("{suite}: {page}"))
            .1;
        let section = section.split_once("</section>").unwrap().0;
        for title in titles {
            assert!(section.contains(title), "{suite}: {title:?} in {section}");
        }
        assert!(section.contains("<svg"), "{suite}");
        for fault in ["class=\"fault\"", "NaN", "undefined", "[object"] {
            assert!(!section.contains(fault), "{suite}: {fault} in {section}");
        }
    }
    let report = drawn(&out.join("report.html"));
    assert!(report.contains("at most 0.5% loss") && !report.contains("class=\"fault\""), "{report}");
}
