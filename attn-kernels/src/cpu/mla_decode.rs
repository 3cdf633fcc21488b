//! Reference of `mla_decode`.

use super::attention::{State, weighted_sum};
use super::f32_of;
use crate::kernel::mla_decode::{LatentShape, MlaDecodeParams};

/// One row of queries and its keys, in the order of attention.
#[derive(Clone, Debug)]
pub struct LatentRow<'a> {
    /// Row of queries and output.
    pub row: usize,
    /// Latents `[latent + rope]`.
    pub keys: Vec<&'a [f32]>,
    /// Index of the first key that the row sees.
    pub begin: usize,
}

/// Computes the attention of rows to their latents, in partitions from the one with the first key on. Writes
/// unnormalised outputs to `partial` `[rows, num_heads, max_partitions, latent]`, and (max, sum) to `stats` `[rows,
/// num_heads, max_partitions]`. Partitions outside the part that `params` asks for are left alone. Without a reduce
/// pass, `partial` is `[*, num_heads, latent]`, normalised, and 0 for a row without keys.
pub fn mla_decode(
    shape: &LatentShape,
    params: &MlaDecodeParams,
    q: &[f32],
    rows: &[LatentRow<'_>],
    partial: &mut [f32],
    stats: &mut [[f32; 2]],
) {
    let (heads, latent) = (params.num_heads as usize, shape.latent as usize);
    let (most, size) = (params.max_partitions as usize, params.partition_size as usize);
    for (index, row) in rows.iter().enumerate() {
        for head in 0..heads {
            let out = (row.row * heads + head) * latent;
            if params.reduced == 0 {
                partial[out..out + latent].fill(0.0);
            }
            let first = row.begin / size;
            let partitions = row.keys.chunks(size).enumerate().skip(first);
            let asked = |p: usize| {
                let from_first = (p * size).checked_sub(params.first_key as usize);
                row.begin < row.keys.len() && from_first.is_some_and(|key| key < params.num_keys as usize)
            };
            for (p, keys) in partitions.filter(|(p, _)| asked(*p)) {
                let seen = &keys[row.begin.saturating_sub(p * size)..];
                let state = attend(shape, params, &q[row.row * params.q_stride as usize..], head, seen);
                let at = (index * heads + head) * most + p - first;
                stats[at] = [f32_of(state.top), f32_of(state.sum)];
                if params.reduced == 0 {
                    let out = &mut partial[out..out + latent];
                    out.iter_mut().zip(state.output()).for_each(|(to, x)| *to = x);
                } else {
                    let out = &mut partial[at * latent..][..latent];
                    out.iter_mut().zip(&state.weighted).for_each(|(to, x)| *to = f32_of(*x));
                }
            }
        }
    }
}

/// Computes the attention of head `head` of the queries of one row `[num_heads, latent + rope]` to `keys`.
#[must_use]
pub fn attend(
    shape: &LatentShape,
    params: &MlaDecodeParams,
    q: &[f32],
    head: usize,
    keys: &[&[f32]],
) -> State {
    let width = shape.width() as usize;
    let q = &q[head * width..][..width];
    let product = |key: &[f32]| q.iter().zip(key).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum::<f64>();
    let scores: Vec<f64> = keys.iter().map(|key| f64::from(params.scale) * product(key)).collect();
    weighted_sum(&scores, shape.latent as usize, |key| keys[key].iter().map(|x| f64::from(*x)))
}
