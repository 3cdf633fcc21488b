//! Reference of `norm_heads`.

use super::f32_of;
use crate::kernel::norm_heads::{Norm, NormHeadsParams};

/// Computes `x = (x - mean) / sqrt(mean((x - mean)^2) + eps) * factor + addend` over each run, in place. In an RMS
/// norm, the mean counts as 0. `weight` holds all factors, then all addends.
pub fn norm_heads(params: &NormHeadsParams, norm: Norm, weight: &[f32], x: &mut [f32]) {
    let width = params.width as usize;
    let (factors, added) = weight.split_at(width);
    for row in x.chunks_mut(params.stride as usize).take(params.rows as usize) {
        let runs = row[params.first as usize..].chunks_exact_mut(width).take(params.heads as usize);
        for run in runs {
            let values: Vec<f64> = run.iter().map(|v| f64::from(*v)).collect();
            let mean = match norm {
                Norm::Rms => 0.0,
                Norm::Layer => values.iter().sum::<f64>() / f64::from(params.width),
            };
            let squares: f64 = values.iter().map(|v| (v - mean).powi(2)).sum();
            let root = (squares / f64::from(params.width) + f64::from(params.eps)).sqrt();
            for (i, v) in values.iter().enumerate() {
                run[i] = f32_of((v - mean) / root * f64::from(factors[i]) + f64::from(added[i]));
            }
        }
    }
}
