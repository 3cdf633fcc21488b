//! `pagoda bench policies`, and `--sparse auto` that goes by it, with a tiny model.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tests/fixtures/tiny-llama-unigram");

const PLAN: &str =
    r#"Report(policies: ["quest:page_budget={30%/16}"], lengths: [128], scored: 4, answer: 4)"#;

/// Runs a command with the model in a folder; returns what it printed and what it said.
#[track_caller]
fn pagoda(folder: &Path, args: &[&str]) -> (String, String) {
    let mut pagoda = Command::new(env!("CARGO_BIN_EXE_pagoda"));
    pagoda.args(args).args(["--model", MODEL]).current_dir(folder);
    pagoda.env("PAGODA_CACHE_DIR", folder.join("cache")).env("XDG_CONFIG_HOME", folder);
    let output = pagoda.output().unwrap();
    let [printed, said] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    assert_eq!(output.status.code(), Some(0), "{args:?}: {said}");
    (printed, said)
}

#[test]
fn auto_goes_by_what_the_report_measured() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    fs::write(folder.join("plan.ron"), PLAN).unwrap();
    let bench = ["bench", "policies", "--plan", "plan.ron", "--json"];
    let (rows, said) =
        pagoda(folder, &[&bench[..], &["--sparse", "auto:loss=1%", "--kv-tiers", "host=1MiB"]].concat());
    let read = |line: &str| serde_json::from_str::<Value>(line).unwrap()["policy"].clone();
    assert_eq!(rows.lines().map(read).collect::<Vec<_>>(), ["full", "quest:page_budget=3"]);
    for flag in ["--sparse", "--kv-tiers"] {
        assert!(said.contains(&format!("{flag}: left out, ")), "{said}");
    }
    assert!(fs::read_to_string(folder.join("report.html")).unwrap().contains("quest:page_budget=3"));
    let report: Value = serde_json::from_slice(&fs::read(folder.join("report.json")).unwrap()).unwrap();
    let command = report["facts"]["command"].as_str().unwrap();
    assert!(command.starts_with("pagoda bench policies --plan plan.ron"), "{command}");
    // Without the flag it is the same page: nothing is measured again.
    let (again, _) = pagoda(folder, &[&bench[..], &["--report"]].concat());
    assert_eq!(again, rows);

    let (_, said) = pagoda(folder, &["run", "Light", "--max-tokens", "1", "--sparse", "auto:loss=1000%"]);
    let known = said.lines().any(|line| line.starts_with("sparse: ") && line.contains("measured on "));
    assert!(known && !said.contains("measuring policies"), "{said}");
}
