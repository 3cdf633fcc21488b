//! Dense answers to RULER's prompts are those of transformers, as `bench policies` gives them to a user.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use serde::Deserialize;
use serde_json::Value;

use crate::is_long;

/// Twenty prompts, of which those of 2,000 tokens take minutes without a GPU.
const ALL: &str = "(policies: [\"full\"], chunk: 512, texts: [], needles: [
    (task: qa_1, lengths: [350], samples: 4),
    (task: niah_single_1, lengths: [350], depths: [0.5], samples: 3),
], ruler: [(lengths: [2000], samples: 1)])";

const SHORT: &str =
    "(policies: [\"full\"], chunk: 512, texts: [], needles: [(task: qa_1, lengths: [350], samples: 1)])";

#[derive(Deserialize)]
struct Reference {
    answers: BTreeMap<String, String>,
}

#[test]
fn answers_are_those_of_transformers() {
    let reference: Reference = serde_json::from_str(include_str!("../fixtures/ruler.json")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let plan = folder.path().join("plan.ron");
    fs::write(&plan, if is_long() { ALL } else { SHORT }).unwrap();
    let mut bench = Command::new(env!("CARGO_BIN_EXE_xtask"));
    let done = bench.args(["bench", "policies", "--json", "--plan"]).arg(&plan).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let cells: Vec<Value> = String::from_utf8(done.stdout)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(cells.len(), if is_long() { 20 } else { 1 });
    for cell in cells {
        let (task, answer) = (cell["task"].as_str().unwrap(), cell["answer"].as_str().unwrap());
        // A reference ends where rounding decides between two tokens.
        assert!(answer.starts_with(&reference.answers[task]), "{task}: {answer:?}");
    }
}
