//! Reference of `norm_halves`.

use half::f16;

use super::rms_norm;
use crate::kernel::norm_halves::NormHalvesParams;
use crate::kernel::rms_norm::RmsNormParams;

/// f16 `[rows, 4 * quads]` of the RMS norm of `x`.
pub fn norm_halves(params: &NormHalvesParams, x: &[f32], weight: &[f32]) -> Vec<f16> {
    let NormHalvesParams { rows, quads, eps, .. } = *params;
    let mut normed = vec![0.0; x.len()];
    rms_norm::rms_norm(
        &RmsNormParams { rows, width: quads * 4, eps, first: 0 },
        x,
        None,
        weight,
        &mut normed,
    );
    normed.into_iter().map(f16::from_f32).collect()
}
