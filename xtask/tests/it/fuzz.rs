//! Readers of files and texts of others, on the corpora of `fuzz` and on changed copies of them.
//!
//! `PAGODA_MUTATIONS` sets how many copies each file becomes; the seeds are fixed, so that a failure repeats itself.

#[path = "../../../fuzz/src/lib.rs"]
#[expect(unreachable_pub, reason = "the package of fuzz exports it")]
mod targets;

use std::fs;
use std::path::{Path, PathBuf};

use targets::mutate::mutated;
use targets::{TARGETS, Target};
use xtask::tree;

/// Bytes at the beginning of a file that are changed: data of tensors behind them are no text.
const REACH: usize = 8192;

fn files(folder: &Path) -> Vec<PathBuf> {
    tree::files(folder).into_iter().map(|path| folder.join(path)).collect()
}

/// Files of a target: its corpus, and for some of them what the tree has.
fn sources(target: &Target) -> Vec<PathBuf> {
    let mut sources = files(&tree::root().join("fuzz/corpus").join(target.name));
    if target.name == "plans" {
        let folders = ["xtask", "models/checkpoint/shapes", "sparse-select/presets"];
        let all = folders.iter().flat_map(|folder| files(&tree::root().join(folder)));
        sources.extend(all.filter(|path| path.extension().is_some_and(|extension| extension == "ron")));
    }
    sources
}

#[test]
fn every_target_has_a_corpus_of_what_is_taken_and_what_is_not() {
    for target in TARGETS {
        let sources = sources(&target);
        let taken = sources.iter().filter(|path| (target.run)(&fs::read(path).unwrap())).count();
        eprintln!("{}: {} files, of which {taken} are taken", target.name, sources.len());
        assert!(taken > 0 && taken < sources.len(), "{}: {taken} of {}", target.name, sources.len());
    }
}

#[test]
fn changed_files_are_errors_or_work() {
    let rounds: u64 =
        std::env::var("PAGODA_MUTATIONS").map_or(8, |text| text.parse().expect("a whole number"));
    for target in TARGETS {
        let (mut taken, mut refused) = (0, 0);
        for (index, path) in (0..).zip(sources(&target)) {
            let source = fs::read(&path).unwrap();
            for round in 0..rounds {
                let good = (target.run)(&mutated(&source, index << 32 | round, REACH));
                *if good { &mut taken } else { &mut refused } += 1;
            }
        }
        eprintln!("{}: {taken} changed files were taken, {refused} refused", target.name);
        assert!(refused > 0, "{}: no change did anything", target.name);
    }
}
