//! The corpus of `fuzz` for bodies, and changed copies of it: answers, and never an error of the server.
//!
//! `PAGODA_MUTATIONS` sets how many copies each file becomes; the seeds are fixed, so that a failure repeats itself.

#[path = "../../../../fuzz/src/mutate.rs"]
#[expect(unreachable_pub, reason = "the package of fuzz exports it")]
mod mutate;

use std::fs;
use std::path::PathBuf;

use mutate::mutated;

use crate::client::{post_bytes, receive, send};
use crate::fixture::{Served, Setup, start};

fn corpus() -> Vec<PathBuf> {
    let folder: PathBuf = [env!("CARGO_MANIFEST_DIR"), "..", "..", "fuzz", "corpus", "http"].iter().collect();
    let mut files: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

/// The status that a path and a body get.
fn status(served: &Served, bytes: &[u8]) -> u16 {
    let line = bytes.iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len());
    // What no client can send as a path gets another one.
    let path: String =
        String::from_utf8_lossy(&bytes[..line]).chars().filter(char::is_ascii_graphic).collect();
    let path = if path.starts_with('/') { path } else { format!("/{path}") };
    receive(send(served, &post_bytes(&path, bytes.get(line + 1..).unwrap_or_default()))).status
}

#[test]
fn bodies_are_answered_or_refused() {
    let rounds: u64 =
        std::env::var("PAGODA_MUTATIONS").map_or(4, |text| text.parse().expect("a whole number"));
    let served = start(Setup::default());
    let (mut answered, mut refused) = (0, 0);
    for (index, path) in (0..).zip(corpus()) {
        let source = fs::read(&path).unwrap();
        let changed = (0..rounds).map(|round| mutated(&source, index << 32 | round, usize::MAX));
        for bytes in std::iter::once(source.clone()).chain(changed) {
            match status(&served, &bytes) {
                200 => answered += 1,
                400..500 => refused += 1,
                other => panic!("{other} for {}", String::from_utf8_lossy(&bytes)),
            }
        }
    }
    eprintln!("{answered} bodies were answered, {refused} refused");
    assert!(answered > 0 && refused > 0);
}
