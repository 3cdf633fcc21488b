//! The board of Grafana and the alerts of Prometheus: their expressions name metrics and labels that a server has.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::{read, text};
use crate::fleet::{chat, direct, worker};
use crate::redis::Redis;

type Labels = BTreeMap<String, String>;

/// Labels that Prometheus adds.
const ADDED: [&str; 2] = ["instance", "job"];

/// The series of a server that has tiers and has answered, by name.
fn series(names: &str) -> BTreeMap<String, Vec<Labels>> {
    let redis = Redis::start();
    let tiers = redis.spec().replace("remote", "host=1MiB,remote");
    let server = worker(0, &["--metrics-names", names, "--kv-tiers", &tiers]);
    direct(&server, "/v1/chat/completions", &chat("the hare", 4)).ok();
    let metrics = server.ask("GET", "/metrics", "");
    let (_, page) = metrics.split_once("\r\n\r\n").unwrap();
    let mut all: BTreeMap<String, Vec<Labels>> = BTreeMap::new();
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let (name, rest) = line.split_once('{').expect("each series has labels");
        let (labels, _) = rest.rsplit_once("} ").unwrap();
        let label = |label: &str| {
            let (name, value) = label.split_once("=\"").unwrap();
            (name.to_owned(), value.trim_end_matches('"').to_owned())
        };
        all.entry(name.to_owned()).or_default().push(labels.split("\",").map(label).collect());
    }
    all
}

/// An expression, and a text that shows its result.
struct Shown {
    expression: String,
    text: String,
}

/// Names of labels that a text shows between two marks.
fn shown(text: &str, begin: &str, end: &str) -> Vec<String> {
    text.split(begin).skip(1).map(|rest| rest.split(end).next().unwrap().trim().to_owned()).collect()
}

/// Checks names and labels of expressions, and the labels `shown` with their results.
fn check(all: &[Shown], series: &BTreeMap<String, Vec<Labels>>, marks: [&str; 2]) {
    let expressions: Vec<&str> = all.iter().map(|shown| shown.expression.as_str()).collect();
    let read = read("promql", &json!(expressions).to_string());
    for (Shown { expression, text }, read) in all.iter().zip(read.as_array().unwrap()) {
        let mut labels: BTreeSet<&str> = BTreeSet::from(ADDED);
        for named in read["series"].as_array().unwrap() {
            let name = named[0].as_str().unwrap();
            // Written by Prometheus itself.
            if name == "up" {
                continue;
            }
            let samples = series.get(name).unwrap_or_else(|| panic!("no {name}, in {expression}"));
            labels.extend(samples[0].keys().map(String::as_str));
            for matcher in named[1].as_array().unwrap() {
                let [label, operator, value] = [0, 1, 2].map(|at| matcher[at].as_str().unwrap());
                if ADDED.contains(&label) {
                    continue;
                }
                assert_eq!(operator, "MatchOp.Equal", "{expression}");
                let has = |sample: &Labels| sample.get(label).is_some_and(|found| found == value);
                assert!(samples.iter().any(has), "no {name} with {label}={value:?}, in {expression}");
            }
        }
        let groups = super::texts(&read["groups"]);
        assert!(groups.iter().all(|label| labels.contains(label)), "{groups:?}, in {expression}");
        let kept: BTreeSet<&str> = if groups.is_empty() { labels } else { groups.into_iter().collect() };
        for label in shown(text, marks[0], marks[1]) {
            assert!(kept.contains(label.as_str()), "{label} is shown, but {expression} has {kept:?}");
        }
    }
}

#[test]
fn the_board_shows_what_a_server_measures() {
    let board: Value = serde_json::from_str(&text("grafana.json")).unwrap();
    let panels = board["panels"].as_array().unwrap();
    let variables = board["templating"]["list"].as_array().unwrap();
    let names = variables.iter().find(|variable| variable["name"] == "names").unwrap();
    for name in names["query"].as_str().unwrap().split(',') {
        let series = series(name);
        let targets = panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten();
        let all: Vec<Shown> = targets
            .map(|target| {
                let expression = target["expr"].as_str().unwrap().replace("$names", name);
                let expression = expression.replace("$instance", ".*").replace("$__rate_interval", "1m");
                assert!(!expression.contains('$'), "{expression}");
                Shown { expression, text: target["legendFormat"].as_str().unwrap().to_owned() }
            })
            .collect();
        assert!(all.len() > 30, "{} expressions", all.len());
        check(&all, &series, ["{{", "}}"]);
        assert!(series.contains_key("pagoda:steps_total"), "the servers are listed by it");
    }
    // Panels do not overlap, and have ids of their own.
    let ids: BTreeSet<u64> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), panels.len());
    let places: BTreeSet<[u64; 2]> =
        panels.iter().map(|panel| ["x", "y"].map(|axis| panel["gridPos"][axis].as_u64().unwrap())).collect();
    assert_eq!(places.len(), panels.len());
}

#[test]
fn alerts_watch_what_a_server_measures() {
    let alerts = read("documents", &text("alerts.yaml"));
    let rules = alerts[0]["groups"][0]["rules"].as_array().unwrap();
    let all: Vec<Shown> = rules
        .iter()
        .map(|rule| Shown {
            expression: rule["expr"].as_str().unwrap().to_owned(),
            text: rule["annotations"]["summary"].as_str().unwrap().to_owned(),
        })
        .collect();
    assert!(all.len() >= 10);
    for names in ["pagoda", "both"] {
        check(&all, &series(names), ["{{ $labels.", "}}"]);
    }
}
