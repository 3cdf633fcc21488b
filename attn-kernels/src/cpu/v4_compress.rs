//! Reference of `v4_compress`: the compressor of `sparse-select`.

use sparse_select::v4::compressor::{Ratio, State, add_ape, pool, rms_norm, rotate};

/// Returns the entry of `dim` channels that the last token of a sequence completes, from the states `kv` and `score`
/// of its tokens, `[len, coff * dim]`, without the positional embedding in `score`; `None` if the token completes
/// none.
#[must_use]
pub fn v4_compress(
    ratio: Ratio,
    (kv, score): (&[f32], &[f32]),
    ape: &[f32],
    norm: &[f32],
    (eps, theta): (f32, f64),
) -> Option<Vec<f32>> {
    let (dim, width) = (norm.len(), norm.len() * ratio.coff());
    let mut embedded = score.to_vec();
    for (pos, row) in embedded.chunks_mut(width).enumerate() {
        add_ape(row, ape, pos, ratio);
    }
    let last = (kv.len() / width).checked_sub(1)?;
    let mut entry = pool(ratio, &State { kv, score: &embedded, dim }, last)?;
    rms_norm(&mut entry, norm, eps);
    rotate(&mut entry, ratio, last, theta);
    Some(entry)
}
