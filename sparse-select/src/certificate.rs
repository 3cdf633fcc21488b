//! Certificates: lower bounds of the attention mass that a decode selection keeps.
//!
//! The digest of a block bounds every logit in it: `q·k <= u = Σ_d max(q_d min_d, q_d max_d)`. So the dropped
//! blocks hold at most `D = Σ n_b e^(s u_b)` of the softmax's numerator, for n_b tokens and scale s, and with
//! the exact kept part `K = e^lse` the kept mass `K / (K + dropped)` is at least `K / (K + D)`. No key of a
//! dropped block is read.

use crate::{
    Heads, SelectError, Selection,
    attention::{default_scale, log_sum_exp, logits},
    blocks::block_tokens,
    digest::{DigestFormat, MinMax},
    heads::gqa_group,
    topk::union,
};
use kvblock::BlockSize;

/// Safety margin of [`select_mass`] on logits, relative to the largest magnitudes that their terms may have. It
/// applies to the bounds of blocks that may be dropped, and to the logits kept. With this and the next two margins, a
/// kernel that computes in f32 selects like this f64 reference, and its certificates are true.
pub const TERM_SLACK: f64 = 1e-5;
/// Safety margin on the mass that dropped blocks may hold, relative to that mass.
pub const SHARE_SLACK: f64 = 3e-4;
/// Safety margin on the certified mass, absolute: the precision at which f32 reports it.
pub const MASS_SLACK: f64 = 2e-6;

/// Ratio at which [`select_mass`] stops: the kept part of the softmax's numerator over the bound on the dropped part
/// ([`TERM_SLACK`] included). Infinite if only keeping all blocks certifies `mass`, because it is 1 or very close to
/// 1.
#[must_use]
pub fn odds(mass: f64) -> f64 {
    let mass = (mass + MASS_SLACK).min(1.0);
    mass / (1.0 - mass) * (1.0 + SHARE_SLACK)
}

/// Number added to the logarithm of the dropped bound, so that f64 rounding on either side cannot make the claim
/// false. Logits of magnitude 10^4 over 10^3 channels have smaller rounding errors.
const ROUNDING_MARGIN: f64 = 1e-9;

/// A lower bound of the attention mass that one query head keeps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Certificate {
    /// Log-sum-exp of the kept logits, natural logarithm.
    pub kept_lse: f64,
    /// Natural logarithm of the bound on the dropped `Σ e^logit`; -inf when nothing is dropped.
    pub dropped_log_bound: f64,
}

impl Certificate {
    /// The certificate for a kept lse, as an attention kernel returns it, and the `(logit bound, tokens)` of
    /// each dropped block.
    #[must_use]
    pub fn new(kept_lse: f64, dropped: impl IntoIterator<Item = (f64, usize)> + Clone) -> Self {
        let terms = dropped.into_iter().map(|(bound, tokens)| log_bound(bound, tokens));
        Self { kept_lse, dropped_log_bound: log_sum_exp(terms.collect::<Vec<_>>().iter().copied()) }
    }

    /// Lower bound of the kept attention mass, in `[0, 1]`; 1 only when nothing is dropped.
    #[must_use]
    pub fn mass(&self) -> f64 {
        if self.dropped_log_bound == f64::NEG_INFINITY {
            return 1.0;
        }
        let share = 1.0 / (1.0 + (self.dropped_log_bound + ROUNDING_MARGIN - self.kept_lse).exp());
        share.min(1.0 - f64::EPSILON)
    }
}

/// Blocks chosen to certify a mass, with the certificate of each query head of the group.
#[derive(Clone, Debug, PartialEq)]
pub struct Certified {
    /// Indices of the blocks, ascending.
    pub blocks: Vec<u32>,
    /// `[group]`, one for each query head.
    pub certificates: Vec<Certificate>,
}

/// Chooses blocks for KV head `kv` and one query (`q` holds one token): the last block, then blocks by
/// decreasing bound of their mass (the largest over the group's query heads), until every query head of the
/// group is certified to keep `mass`. With `mass` 1, that is every block. The certified mass is slightly more
/// than `mass`: see [`odds`].
///
/// O(n log n) for the order, O(n · group · head_dim) for the bounds, plus the keys of the chosen blocks.
#[must_use]
pub fn select_mass(q: &Heads<'_>, k: &Heads<'_>, kv: usize, digest: &MinMax, mass: f64) -> Certified {
    let n = digest.num_blocks();
    let group = q.heads() / k.heads();
    let heads = kv * group..(kv + 1) * group;
    let bounds: Vec<Vec<f64>> = heads.clone().map(|h| log_bounds(q.row(h, 0), kv, digest, 0.0)).collect();
    let Some(last) = n.checked_sub(1) else {
        return Certified { blocks: Vec::new(), certificates: Vec::new() };
    };

    let worst = |b: u32| bounds.iter().map(|of_head| of_head[b as usize]).fold(f64::NEG_INFINITY, f64::max);
    let mut order: Vec<u32> = (0..last).collect();
    order.sort_by(|&a, &b| worst(b).total_cmp(&worst(a)));
    order.insert(0, last);
    let rest: Vec<Vec<f64>> = bounds.iter().map(|of_head| suffix_log_sums(&order, of_head)).collect();
    let slack = |h: usize| suffix_log_sums(&order, &log_bounds(q.row(h, 0), kv, digest, TERM_SLACK));
    let rest_with_slack: Vec<Vec<f64>> = heads.clone().map(slack).collect();
    // What rounding may have added to any kept logit of a head.
    let lost = |h: usize| {
        let of_blocks = (0..n).map(|b| digest.magnitude(q.row(h, 0), b, kv)).fold(0.0, f64::max);
        TERM_SLACK * default_scale(q.dim()) * of_blocks
    };
    let lost: Vec<f64> = heads.clone().map(lost).collect();
    let odds = odds(mass).ln();

    let mut kept = vec![f64::NEG_INFINITY; group];
    for (taken, &block) in order.iter().enumerate() {
        for (lse, head) in kept.iter_mut().zip(heads.clone()) {
            *lse = log_sum_exp([*lse, block_lse(q.row(head, 0), k, kv, block, digest)]);
        }
        let suffices = |((kept, lost), rest): ((&f64, &f64), &Vec<f64>)| {
            let dropped = rest[taken + 1];
            dropped == f64::NEG_INFINITY || kept - lost >= odds + dropped
        };
        if kept.iter().zip(&lost).zip(&rest_with_slack).all(suffices) {
            let certificate = |(&kept_lse, rest): (&f64, &Vec<f64>)| Certificate {
                kept_lse,
                dropped_log_bound: rest[taken + 1],
            };
            let certificates = kept.iter().zip(&rest).map(certificate).collect();
            return Certified { blocks: union(order[..=taken].iter().copied(), []), certificates };
        }
    }
    unreachable!("with all {n} blocks kept the certified mass is 1, and {mass} was asked for")
}

/// The attention mass that a selection certifiably keeps: the smallest over all query heads and queries. The
/// queries `q` sit at the last positions of `k`; each sees the keys up to its own position.
/// Digests are those that an engine keeps in `format`.
///
/// # Errors
/// When the shapes do not match.
pub fn selection_mass(
    selection: &Selection,
    q: &Heads<'_>,
    k: &Heads<'_>,
    block_size: BlockSize,
    format: DigestFormat,
) -> Result<f64, SelectError> {
    let group = gqa_group(q, k)?;
    let first = k
        .len()
        .checked_sub(q.len())
        .ok_or(SelectError::QueryBeyondHistory { q_len: q.len(), kv_len: k.len() })?;
    let mut digest = MinMax::new(k.heads(), k.dim(), block_size, format);
    let mut least = 1.0f64;
    for t in 0..q.len() {
        let seen = k.window(0, first + t + 1);
        digest.extend(&seen);
        let query_block = crate::measure::query_block(selection, t, first, q.len(), block_size);
        for head in 0..q.heads() {
            let row = selection.row_shared(head / group, query_block);
            let mut is_kept = vec![false; digest.num_blocks() as usize];
            for block in row.iter().filter(|b| b.get() < digest.num_blocks()) {
                is_kept[block.get() as usize] = true;
            }
            least = least.min(certify(q.row(head, t), &seen, head / group, &digest, &is_kept).mass());
        }
    }
    Ok(least)
}

/// The certificate of one query head for the blocks marked in `is_kept`, `[num_blocks]`.
#[must_use]
pub fn certify(q: &[f32], k: &Heads<'_>, kv: usize, digest: &MinMax, is_kept: &[bool]) -> Certificate {
    let scale = default_scale(q.len());
    let (kept, dropped): (Vec<u32>, Vec<u32>) = (0..digest.num_blocks()).partition(|&b| is_kept[b as usize]);
    let kept: Vec<f64> = kept.into_iter().map(|b| block_lse(q, k, kv, b, digest)).collect();
    let dropped = dropped.into_iter().map(|b| (scale * digest.bound(q, b, kv), digest.tokens(b)));
    Certificate::new(log_sum_exp(kept.iter().copied()), dropped.collect::<Vec<_>>())
}

fn log_bound(bound: f64, tokens: usize) -> f64 {
    bound + (tokens as f64).ln()
}

/// Natural logarithm of the bound on each block's `Σ e^logit`, `[num_blocks]`. Logits are increased by `slack` times
/// the [magnitudes](MinMax::magnitude) of their terms.
fn log_bounds(q: &[f32], kv: usize, digest: &MinMax, slack: f64) -> Vec<f64> {
    let scale = default_scale(q.len());
    let bound = |b: u32| {
        let most = digest.bound(q, b, kv) + slack * digest.magnitude(q, b, kv);
        log_bound(scale * most, digest.tokens(b))
    };
    (0..digest.num_blocks()).map(bound).collect()
}

fn block_lse(q: &[f32], k: &Heads<'_>, kv: usize, block: u32, digest: &MinMax) -> f64 {
    let tokens = block_tokens(block, digest.block_size(), k.len());
    let logits = logits(q, &k.window(tokens.start, tokens.len()), kv, default_scale(q.len()));
    log_sum_exp(logits.iter().copied())
}

/// `out[i]` is the log-sum-exp of the values of `order[i..]`; one entry more than `order`.
fn suffix_log_sums(order: &[u32], values: &[f64]) -> Vec<f64> {
    let mut sums = vec![f64::NEG_INFINITY; order.len() + 1];
    for (i, &block) in order.iter().enumerate().rev() {
        sums[i] = log_sum_exp([sums[i + 1], values[block as usize]]);
    }
    sums
}
