//! One word for one thing: types that several crates speak of are defined once, in the lowest crate that can own them.

use std::collections::BTreeMap;
use std::fs;

use xtask::tree;

/// Folders of the crates.
const CRATES: [&str; 12] = [
    "kvblock",
    "sparse-select",
    "attn-kernels",
    "prefetch",
    "scheduler",
    "models/checkpoint",
    "models/dense-kernels",
    "models",
    "xtask/pagoda",
    "xtask/serve",
    "xtask/cli",
    "xtask",
];

/// Words, and the file that defines each.
const WORDS: [(&str, &str); 10] = [
    // Element type of a cache.
    ("KvDtype", "kvblock/src/spec.rs"),
    // Formats of an indexer's keys, types of activations, places of selection, and names of metrics, which are flags too.
    ("IndexDtype", "models/src/kv/plan/index_dtype.rs"),
    ("ActivationType", "models/src/decoder/options.rs"),
    ("SelectionPlace", "models/src/sparse.rs"),
    ("MetricsNames", "xtask/serve/src/metrics.rs"),
    // Keys that a query reaches. `AttentionKind` is what follows for blocks, and can be made from it.
    ("Reach", "kvblock/src/spec.rs"),
    // Prefill or decode. `Stage` of sparse-select has it, with the place of a chunk.
    ("Phase", "kvblock/src/lifecycle.rs"),
    // End of a sequence as a scheduler sees it.
    ("Ending", "kvblock/src/lifecycle.rs"),
    // End of a request as its caller sees it: with the stop text, the deadline, the step that failed.
    ("FinishReason", "xtask/pagoda/src/event.rs"),
    // Elements that rotate together.
    ("Pairing", "models/checkpoint/src/config/rope.rs"),
];

/// The file of each public type of these names, by name.
fn definitions() -> BTreeMap<String, Vec<String>> {
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for folder in CRATES {
        let source = tree::root().join(folder).join("src");
        for path in tree::files(&source).iter().filter(|path| path.extension().is_some_and(|e| e == "rs")) {
            let text = fs::read_to_string(source.join(path)).unwrap();
            for line in text.lines() {
                let kinds = ["pub enum ", "pub struct ", "pub type "];
                let Some(rest) = kinds.iter().find_map(|kind| line.strip_prefix(kind)) else { continue };
                let name =
                    rest.split(|c: char| !c.is_alphanumeric()).next().expect("a split has a first part");
                let path = path.iter().map(|part| part.to_string_lossy()).collect::<Vec<_>>().join("/");
                found.entry(name.to_owned()).or_default().push(format!("{folder}/src/{path}"));
            }
        }
    }
    found
}

#[test]
fn shared_words_are_defined_once() {
    let found = definitions();
    for (word, owner) in WORDS {
        let files: Vec<&str> = found.get(word).into_iter().flatten().map(String::as_str).collect();
        assert_eq!(files, [owner], "definitions of {word}");
    }
}
