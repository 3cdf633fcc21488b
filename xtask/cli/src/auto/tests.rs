use std::cell::RefCell;
use std::fs;

use anyhow::anyhow;
use pagoda::Registry;
use pagoda::measured::MeasuredPolicy;

use super::*;
use crate::cli::{Cli, Command, Shared};

fn engine(line: &str) -> EngineArgs {
    let line = format!("pagoda score --ids-file a {line}");
    match Cli::try_parse_with(&Registry::builtin(), line.split_whitespace()).unwrap().command {
        Command::Shared(Shared::Score(args)) => args.engine,
        other => panic!("parsed {other:?} instead of score"),
    }
}

fn auto(limit: &str) -> Auto {
    match engine(&format!("--sparse auto:loss={limit}")).sparse {
        Some(SparseArg::Auto(auto)) => auto,
        other => panic!("{other:?}"),
    }
}

fn measurement() -> Measurement {
    let row = |spec: &str, loss, speedup| MeasuredPolicy {
        spec: spec.into(),
        tokens: 32_768,
        loss,
        loss_error: 0.0002,
        speedup,
    };
    Measurement {
        date: "2026-11-26".into(),
        text: "Newton, Opticks".into(),
        policies: vec![
            row("quest:page_budget=205", 0.0041, 1.7),
            row("gsa:sparse_ratio=0.1", 0.009, 2.2),
            row("another-program's", 0.0, 9.0),
        ],
    }
}

/// The policy and the note.
fn taken(limit: &str, suits: fn(&Sparse) -> bool) -> String {
    let said = RefCell::new(String::new());
    let say = |note: &str| *said.borrow_mut() += note;
    let sparse = take(&auto(limit), measurement(), &suits, &say);
    let policy = sparse.map_or("full".into(), |sparse| sparse.spec.to_string());
    format!("{policy} - {}", said.into_inner())
}

#[test]
fn the_fastest_policy_within_the_limit_is_taken_and_told() {
    insta::assert_snapshot!(taken("0.5%", |_| true), @"quest:page_budget=205 - auto takes quest:page_budget=205: 1.7 times dense at 32,768 tokens, +0.41 ± 0.02 % loss, measured on 2026-11-26 with Newton, Opticks");
    insta::assert_snapshot!(taken("1%", |_| true), @"gsa:sparse_ratio=0.1 - auto takes gsa:sparse_ratio=0.1: 2.2 times dense at 32,768 tokens, +0.90 ± 0.02 % loss, measured on 2026-11-26 with Newton, Opticks");
    insta::assert_snapshot!(taken("0.1%", |_| true), @"full - attention is dense: no policy measured on 2026-11-26 is faster and loses at most 0.1%");
    // A model that refuses one gets the next.
    assert!(taken("1%", |sparse| sparse.spec.name != "gsa").starts_with("quest:page_budget=205 - "));
}

#[test]
fn policies_are_measured_once() {
    let folder = tempfile::tempdir().unwrap();
    let said = RefCell::new(Vec::new());
    let say = |note: &str| said.borrow_mut().push(note.to_owned());
    let of = |measure: fn() -> Result<Measurement>| {
        known(&mut Measurements::at(folder.path()), "a model".into(), &say, measure)
    };
    let refused = of(|| Err(anyhow!("a software driver"))).unwrap_err().to_string();
    assert_eq!(refused, "a software driver");
    assert_eq!(of(|| Ok(measurement())).unwrap(), measurement());
    assert_eq!(of(|| panic!("it is kept")).unwrap(), measurement());
    assert!(said.borrow().is_empty(), "{said:?}");
    fs::write(folder.path().join("policies.json"), "{\"a model\": 7}").unwrap();
    assert_eq!(of(|| Ok(measurement())).unwrap(), measurement());
    let note = said.borrow().join("\n").replace(&*folder.path().to_string_lossy(), "DIR").replace('\\', "/");
    insta::assert_snapshot!(note, @"what was measured before cannot be read and has to be measured anew: DIR/policies.json: invalid type: integer `7`, expected struct Measurement at line 1 column 13");
    assert_eq!(of(|| panic!("it is kept again")).unwrap(), measurement());
}

#[test]
fn the_command_that_measures_names_what_differs_from_its_defaults() {
    insta::assert_snapshot!(command("pagoda", &engine("")), @"pagoda bench policies --report");
    let line =
        "--model m --quantize q4_k --kv-dtype int8 --block-size 32 --device 1 --no-coop --kv-memory 1GiB";
    insta::assert_snapshot!(command("pagoda", &engine(line)), @"pagoda bench policies --report --model m --quantize q4_k --kv-dtype int8 --block-size 32 --device 1 --no-coop");
}
