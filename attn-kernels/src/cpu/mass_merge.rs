//! Reference of `mass_merge`.

use crate::kernel::mass_merge::MassMergeParams;

/// Returns for every row the minimum over the layers of `kept / (kept + dropped)`, computed in f64 from `shares`
/// `[layers, rows, share_stride]`.
#[must_use]
pub fn mass_merge(params: &MassMergeParams, shares: &[f32]) -> Vec<f32> {
    let mut masses = vec![1.0_f64; params.rows as usize];
    for (i, shares) in shares.chunks_exact(params.share_stride as usize).enumerate() {
        let kept = f64::from(shares[0]);
        if kept >= 0.0 {
            let dropped: f64 = shares[1..].iter().map(|&x| f64::from(x)).sum();
            let mass = &mut masses[i % params.rows as usize];
            // Where a bound was cut off at e^80, nothing is certain.
            *mass = mass.min(if dropped < 80.0_f64.exp() { kept / (kept + dropped) } else { 0.0 });
        }
    }
    masses.into_iter().map(super::f32_of).collect()
}
