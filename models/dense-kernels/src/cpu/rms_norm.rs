//! Reference of `rms_norm`.

use super::f32_of;
use crate::kernel::rms_norm::RmsNormParams;

/// Computes `out[i] = x[s] / sqrt(mean(x[s]^2) + eps) * weight` for each row `i`, where the row `s` is an entry of
/// `sources`, or `i` without `sources`.
pub fn rms_norm(params: &RmsNormParams, x: &[f32], sources: Option<&[u32]>, weight: &[f32], out: &mut [f32]) {
    let width = params.width as usize;
    for (row, out) in out.chunks_exact_mut(width).take(params.rows as usize).enumerate() {
        let source = sources.map_or(row, |sources| sources[params.first as usize + row] as usize);
        let x = &x[source * width..][..width];
        let squares: f64 = x.iter().map(|x| f64::from(*x).powi(2)).sum();
        let factor = 1.0 / (squares / f64::from(params.width) + f64::from(params.eps)).sqrt();
        for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
            *out = f32_of(f64::from(*x) * factor * f64::from(*weight));
        }
    }
}
