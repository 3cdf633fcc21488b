//! Reference of `top_k_count`.

use crate::kernel::top_k_count::BINS;
use sparse_select::topk::order_key;

/// First bit and bits of each digit of a key.
const DIGITS: [(u32, u32); 3] = [(21, 11), (10, 11), (0, 10)];

/// What all dispatches together leave for a row of `scores` of which `k` are selected, fewer than there are and not 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counted {
    /// How often each value of a digit occurs among the keys that share the earlier digits of the k-th largest.
    pub counts: [Vec<u32>; 3],
    /// Before each digit and at the end: its digits so far, and how many of the keys that have them are selected.
    pub cuts: [[u32; 2]; 4],
    /// Keys of each chunk above the k-th largest, and equal to it.
    pub tallies: Vec<[u32; 2]>,
}

/// Counts one row, in chunks of `chunk` scores.
#[must_use]
pub fn top_k_count(scores: &[f32], k: usize, chunk: usize) -> Counted {
    let keys: Vec<u32> = scores.iter().map(|&s| order_key(s)).collect();
    let mut sorted = keys.clone();
    sorted.sort_unstable_by(|a, b| b.cmp(a));
    let kth = sorted[k - 1];
    let count = |is: &dyn Fn(u32) -> bool, keys: &[u32]| {
        u32::try_from(keys.iter().filter(|&&key| is(key)).count()).expect("a row has under 2^32 scores")
    };
    let selected = u32::try_from(k).expect("at most the scores of a row");
    let mut cuts = [[0, selected]; 4];
    let mut counts = [vec![0; BINS], vec![0; BINS], vec![0; BINS]];
    for (digit, (shift, bits)) in DIGITS.into_iter().enumerate() {
        let above_digit = |key: u32| u64::from(key) >> (shift + bits);
        for key in keys.iter().filter(|&&key| above_digit(key) == above_digit(kth)) {
            counts[digit][(key >> shift) as usize % (1 << bits)] += 1;
        }
        let larger = count(&|key| key >> shift > kth >> shift, &keys);
        cuts[digit + 1] = [kth >> shift << shift, selected - larger];
    }
    let chunks = keys.chunks(chunk);
    let tallies =
        chunks.map(|chunk| [count(&|key| key > kth, chunk), count(&|key| key == kth, chunk)]).collect();
    Counted { counts, cuts, tallies }
}
