//! Reference of `sample`: the same order of filters and the same noise, on sorted tokens.

use crate::kernel::sample::{NOT_FINITE, Spec};

/// Draws one token from each row of `logits` `[rows, vocab]`. The result is [`NOT_FINITE`] for a row with a logit
/// that is not finite.
pub fn sample(vocab: usize, logits: &[f32], specs: &[Spec], out: &mut [u32]) {
    for ((logits, spec), out) in logits.chunks_exact(vocab).zip(specs).zip(out) {
        let is_good = |logit: &f32| logit.is_finite() || spec.masked == 1 && *logit == f32::NEG_INFINITY;
        if !logits.iter().all(is_good) {
            *out = NOT_FINITE;
            continue;
        }
        let kept = kept(logits, spec);
        let score = |id: u32| {
            let logit = f64::from(logits[id as usize] - logits[kept[0] as usize]);
            logit / f64::from(spec.temperature) + gumbel(spec, id)
        };
        *out = match spec.temperature {
            0.0 => kept[0],
            _ => kept.iter().copied().max_by(|a, b| score(*a).total_cmp(&score(*b))).unwrap_or(kept[0]),
        };
    }
}

/// Returns the tokens that remain after min-p, then top-k, then top-p, likeliest first; equal logits are ordered by
/// id.
#[must_use]
pub fn kept(logits: &[f32], spec: &Spec) -> Vec<u32> {
    let mut ids: Vec<u32> = (0..).take(logits.len()).collect();
    // Zeros of both signs are equal.
    let logit = |id: &u32| logits[*id as usize] + 0.0;
    ids.sort_by(|a, b| logit(b).total_cmp(&logit(a)).then(a.cmp(b)));
    if spec.temperature == 0.0 {
        return ids;
    }
    let top = f64::from(logits[ids[0] as usize]);
    let mass = |id: &u32| ((f64::from(logits[*id as usize]) - top) / f64::from(spec.temperature)).exp();
    if spec.min_p > 0.0 {
        ids.retain(|id| mass(id) >= f64::from(spec.min_p));
    }
    if spec.top_k > 0 {
        ids.truncate(spec.top_k as usize);
    }
    if spec.top_p < 1.0 {
        let goal = f64::from(spec.top_p) * ids.iter().map(mass).sum::<f64>();
        let mut reached = 0.0;
        let len = ids.iter().position(|id| {
            reached += mass(id);
            reached >= goal
        });
        ids.truncate(len.map_or(ids.len(), |last| last + 1));
    }
    ids
}

/// Whether neither min-p nor top-k drops a token.
pub(super) fn takes_all(vocab: usize, spec: &Spec) -> bool {
    spec.min_p == 0.0 && (spec.top_k == 0 || spec.top_k as usize >= vocab)
}

/// Noise of one token, fixed by (seed, position, id).
#[must_use]
pub fn gumbel(spec: &Spec, id: u32) -> f64 {
    let bits = mix(spec.seed_low ^ mix(spec.seed_high ^ mix(spec.position ^ mix(id))));
    let uniform = (f64::from(bits >> 9) + 0.5) / f64::from(1 << 23);
    -(-uniform.ln()).ln()
}

/// A bijection of 32-bit integers that spreads every bit (xor-shift and multiply, three rounds).
fn mix(v: u32) -> u32 {
    let x = v.wrapping_add(0x9e37_79b9);
    let x = (x ^ (x >> 16)).wrapping_mul(0x21f0_aaad);
    let x = (x ^ (x >> 15)).wrapping_mul(0x735a_2d97);
    x ^ (x >> 15)
}
