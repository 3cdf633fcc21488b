//! Reference of `prefill_reduce`.

use super::lse_merge::lse_merge;

/// Merges attention to the keys of several parts, outputs `[parts, part_rows, head_dim]` and lse `[parts, part_rows]`
/// (natural log; infinities mean "no keys"), into rows `[part_rows, head_dim]` and their lse.
///
/// # Panics
/// When there is no part.
#[must_use]
pub fn prefill_reduce(head_dim: usize, part_rows: usize, out: &[f32], lse: &[f32]) -> [Vec<f32>; 2] {
    let mut parts = out.chunks_exact(part_rows * head_dim).zip(lse.chunks_exact(part_rows));
    let (out, lse) = parts.next().expect("there is a part");
    let (mut out, mut lse) = (out.to_vec(), lse.to_vec());
    // Merged with nothing, the first one is what it would be alone.
    lse_merge(head_dim, &vec![0.0; out.len()], &vec![f32::NEG_INFINITY; lse.len()], &mut out, &mut lse);
    for (of_part, lse_of_part) in parts {
        lse_merge(head_dim, of_part, lse_of_part, &mut out, &mut lse);
    }
    [out, lse]
}
