//! Changed copies of files, given to a reader: it ends with an error or with something that can be used, and asks for no more
//! memory than the file has reason for.
//!
//! `PAGODA_MUTATIONS` sets how many changed files each one becomes; the seed is fixed, so that a failure repeats itself.

use std::fs;
use std::path::PathBuf;

use super::targets::mutate::mutated;
use super::{alloc, tiny_models};

/// Bytes of one allocation that no fixture has reason for: they are smaller than 4 MiB.
const LARGE: usize = 64 << 20;

fn rounds(default: u64) -> u64 {
    std::env::var("PAGODA_MUTATIONS").map_or(default, |text| text.parse().expect("a whole number"))
}

/// Fixtures that have a file of this name.
pub(crate) fn files(name: &str) -> Vec<PathBuf> {
    let all = fs::read_dir(tiny_models()).unwrap().map(|entry| entry.unwrap().path().join(name));
    let mut found: Vec<PathBuf> = all.filter(|path| path.is_file()).collect();
    found.sort();
    assert!(found.len() > 5, "{name}: {} fixtures", found.len());
    found
}

/// Gives changed copies of `sources` to `read`, which says whether it took them.
pub(crate) fn run(
    target: &str,
    sources: &[Vec<u8>],
    (default, reach): (u64, usize),
    read: fn(&[u8]) -> bool,
) {
    let (mut taken, mut refused) = (0, 0);
    for (index, source) in (0..).zip(sources) {
        for round in 0..rounds(default) {
            let bytes = mutated(source, index << 32 | round, reach);
            let size = bytes.len();
            let (good, largest) = alloc::largest(|| read(&bytes));
            assert!(largest < LARGE, "{target} {index}, round {round}: {largest} bytes for a file of {size}");
            *if good { &mut taken } else { &mut refused } += 1;
        }
    }
    eprintln!("{target}: {taken} changed files were taken, {refused} refused");
    assert!(refused > 0, "{target}: no change did anything");
}

pub(crate) fn read_all(paths: &[PathBuf]) -> Vec<Vec<u8>> {
    paths.iter().map(|path| fs::read(path).unwrap()).collect()
}
