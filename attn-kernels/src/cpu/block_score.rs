//! Reference of `block_score`.

use super::block_digest::{Rounding, mean};
use super::{PagedKv, f32_of};
use crate::kernel::KvShape;
use crate::kernel::block_digest::Digest;
use crate::kernel::block_score::{BlockScoreParams, TERM_ERROR};

/// Computes the scores `[rows, sets, score_stride]` of blocks of `select_block` tokens from the keys themselves.
/// Minima, maxima and means are rounded as in digests.
pub fn block_score(
    cache: &PagedKv<'_>,
    (digest, select_block): (Digest, usize),
    params: &BlockScoreParams,
    q: &[f32],
    tables: &[u32],
    rows: &[[u32; 4]],
    scores: &mut [f32],
) {
    let head_dim = cache.shape.head_dim as usize;
    let group = (params.num_heads / params.num_kv_heads) as usize;
    let heads_per_set = params.heads_per_set as usize;
    let sets = params.num_heads as usize / heads_per_set;
    for (index, [row, len, table, _]) in rows.iter().map(|row| row.map(|n| n as usize)).enumerate() {
        let blocks = len.div_ceil(select_block);
        for set in 0..sets {
            let out = &mut scores[(index * sets + set) * params.score_stride as usize..];
            for (block, out) in out[..params.score_stride as usize].iter_mut().enumerate() {
                if block >= blocks {
                    *out = f32::NEG_INFINITY;
                    continue;
                }
                let tokens = block * select_block..len.min((block + 1) * select_block);
                let of_head = |head: usize| {
                    let q = &q[row * params.q_stride as usize + head * head_dim..][..head_dim];
                    let keys = tokens.clone().map(|t| cache.key(&tables[table..], head / group, t).collect());
                    head_score(digest, q, &keys.collect::<Vec<Vec<f64>>>(), &cache.shape)
                };
                let heads = (set * heads_per_set..(set + 1) * heads_per_set).map(of_head);
                let score = match digest {
                    Digest::MinMax => heads.fold(f64::NEG_INFINITY, f64::max),
                    Digest::Mean => heads.sum(),
                };
                *out = ranked(params, f32_of(score * f64::from(params.scale)), block, len, select_block);
            }
        }
    }
}

/// Computes in f64 two bounds per block, `[rows, num_heads, score_stride]`, from the keys themselves. The first is
/// the logarithm of `n e^u` for n tokens whose logits are at most u. The second is the rounding error of a logit in
/// f32, which u includes. Both are -inf beyond the sequence.
#[must_use]
pub fn block_bounds(
    (cache, select_block): (&PagedKv<'_>, usize),
    params: &BlockScoreParams,
    q: &[f32],
    tables: &[u32],
    rows: &[[u32; 4]],
) -> Vec<[f32; 2]> {
    let BlockScoreParams { num_heads, num_kv_heads, q_stride, score_stride, logit_scale, .. } = *params;
    let sizes_of = [num_heads, num_kv_heads, q_stride, score_stride];
    let slack = |q: &[f32], keys: &[Vec<f64>]| {
        f64::from(TERM_ERROR) * f64::from(logit_scale) * sizes(q, keys, &cache.shape)
    };
    let bounds = cache.of_blocks(select_block, sizes_of, (q, tables, rows), |q, keys| match keys.len() {
        0 => f64::NEG_INFINITY,
        n => {
            let most = f64::from(logit_scale) * head_score(Digest::MinMax, q, keys, &cache.shape);
            (most + slack(q, keys) + (n as f64).ln()).min(3e38)
        }
    });
    let slacks = cache.of_blocks(select_block, sizes_of, (q, tables, rows), |q, keys| match keys.len() {
        0 => f64::NEG_INFINITY,
        _ => slack(q, keys),
    });
    bounds.into_iter().zip(slacks).map(|(bound, slack)| [bound, slack]).collect()
}

/// Returns an upper bound of the sum of the magnitudes of the terms of q · k, from the digest of `keys`.
fn sizes(q: &[f32], keys: &[Vec<f64>], shape: &KvShape) -> f64 {
    let plus: Vec<f32> = q.iter().map(|q| q.abs()).collect();
    let channel = |d: usize| {
        let most = |sign: f64| {
            let signed: Vec<Vec<f64>> = keys.iter().map(|key| vec![sign * key[d]]).collect();
            head_score(Digest::MinMax, &plus[d..=d], &signed, shape)
        };
        most(1.0).max(most(-1.0))
    };
    (0..q.len()).map(channel).sum()
}

/// Returns the bound `Σ_d max(q_d min_d, q_d max_d)`, or q · mean, over the keys of a block.
fn head_score(digest: Digest, q: &[f32], keys: &[Vec<f64>], shape: &KvShape) -> f64 {
    let channel = |d: usize| keys.iter().map(move |key| key[d]);
    let bound = |rounding: Rounding, x: f64| {
        // Where f16 ends, no key is beyond the largest f32.
        f64::from(rounding.kept(shape.dtype, f32_of(x)).clamp(-f32::MAX, f32::MAX))
    };
    let term = |(d, q): (usize, &f32)| {
        let q = f64::from(*q);
        match digest {
            Digest::MinMax => {
                let least = bound(Rounding::Down, channel(d).fold(f64::INFINITY, f64::min));
                let most = bound(Rounding::Up, channel(d).fold(f64::NEG_INFINITY, f64::max));
                (q * least).max(q * most)
            }
            Digest::Mean => {
                let of_page = |page: &[Vec<f64>]| {
                    f64::from(mean(shape.dtype, page.iter().map(|key| key[d]))) * page.len() as f64
                };
                q * keys.chunks(shape.block_size as usize).map(of_page).sum::<f64>() / keys.len() as f64
            }
        }
    };
    q.iter().enumerate().map(term).sum()
}

fn ranked(params: &BlockScoreParams, score: f32, block: usize, len: usize, select_block: usize) -> f32 {
    let blocks = len.div_ceil(select_block);
    let whole = if params.recent_full == 1 { len / select_block } else { blocks };
    if block + 1 == blocks {
        f32::INFINITY
    } else if block < params.sink_blocks as usize || block + params.recent_blocks as usize >= whole {
        f32::MAX
    } else {
        // Forced blocks come first, however large a score is.
        score.min(3e38)
    }
}
