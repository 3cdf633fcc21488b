//! Changes of bytes at random, by a seed.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Numbers at which sizes and offsets overflow.
const ODD: [u64; 8] = [0, 1, 127, 1 << 31, u32::MAX as u64, 1 << 62, i64::MAX as u64, u64::MAX];

/// Texts that mean something to one of the readers.
const TEXTS: [&str; 16] = [
    "null",
    "-1",
    "1e999",
    "18446744073709551616",
    "[",
    "{",
    "\"\"",
    "\\ud800",
    "{% for x in y %}",
    "{{ x * 99999999 }}",
    "| format(1)",
    "%999999999d",
    "{% endfor %}",
    "[[[[[[[[",
    "F32",
    "\u{0}",
];

/// `source` with up to four places within its first `reach` bytes changed.
#[must_use]
pub fn mutated(source: &[u8], seed: u64, reach: usize) -> Vec<u8> {
    let (mut rng, mut bytes) = (StdRng::seed_from_u64(seed), source.to_vec());
    for _ in 0..rng.random_range(1..5) {
        if bytes.len().min(reach) < 16 {
            break;
        }
        change(&mut rng, &mut bytes, reach);
    }
    bytes
}

fn change(rng: &mut StdRng, bytes: &mut Vec<u8>, reach: usize) {
    let len = bytes.len().min(reach);
    let at = rng.random_range(0..len - 8);
    let other = rng.random_range(0..len - 8);
    let run = rng.random_range(1..=(len - at.max(other)).min(64));
    match rng.random_range(0..8) {
        0 => bytes[at] ^= 1 << rng.random_range(0..8u32),
        1 => bytes[at] = rng.random(),
        2 => bytes[at..at + 8].copy_from_slice(&ODD[rng.random_range(0..ODD.len())].to_le_bytes()),
        3 => bytes.truncate(at),
        4 => bytes.copy_within(other..other + run, at),
        5 => drop(bytes.drain(at..at + run)),
        6 => {
            let text = TEXTS[rng.random_range(0..TEXTS.len())].bytes();
            drop(bytes.splice(at..at, text));
        }
        _ => {
            let digit = rng.random_range(b'0'..=b'9');
            let found = bytes[at..len].iter().position(u8::is_ascii_digit);
            found.into_iter().for_each(|digits| bytes[at + digits] = digit);
        }
    }
}
