//! Reference of `top_k_peaks`.

use crate::kernel::top_k_peaks::GROUP;
use sparse_select::topk::order_key;

/// Returns the largest sort key of each group of a row of `scores` whose first score is number `first` of its buffer.
#[must_use]
pub fn top_k_peaks(scores: &[f32], first: u32) -> Vec<u32> {
    let group = GROUP as usize;
    let before = first as usize % group;
    let mut peaks = vec![0; (before + scores.len()).div_ceil(group)];
    for (position, &score) in scores.iter().enumerate() {
        let peak = &mut peaks[(before + position) / group];
        *peak = order_key(score).max(*peak);
    }
    peaks
}
