//! Reference of `hash_codes`.

use crate::kernel::hash_codes::HashCodesParams;

/// Returns those words of the hash code of one vector `[head_dim]` that a dispatch writes.
#[must_use]
pub fn hash_code(params: &HashCodesParams, x: &[f32], weights: &[f32]) -> Vec<u32> {
    let bits = params.bits as usize;
    let part = &x[params.first_channel as usize..][..params.channels as usize];
    let is_positive = |bit: usize| {
        let terms = part.iter().enumerate().map(|(d, x)| f64::from(*x) * f64::from(weights[d * bits + bit]));
        terms.sum::<f64>() > 0.0
    };
    let word = |word: usize| (0..32).fold(0, |code, i| code | u32::from(is_positive(word * 32 + i)) << i);
    (0..bits / 32).map(word).collect()
}
