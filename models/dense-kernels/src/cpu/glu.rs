//! Reference of `glu`.

use super::f32_of;
use crate::Activation;
use crate::kernel::glu::GluParams;

/// Computes `out = activation(gate) * up` from the rows `[gate, up]` of `x`. First, gate and up are multiplied by the
/// row's weight, if there are `weights`, and then the biases of the row's expert are added, if there are `biases`.
pub fn glu(
    params: &GluParams,
    activation: Activation,
    x: &[f32],
    weights: Option<&[f32]>,
    biases: Option<(&[u32], &[f32])>,
    out: &mut [f32],
) {
    let inner = params.inner as usize;
    for row in 0..params.rows as usize {
        for i in 0..inner {
            let input = |part: usize| {
                let bias = biases
                    .map_or(0.0, |(experts, biases)| biases[(experts[row] as usize * 2 + part) * inner + i]);
                let weight = weights.map_or(1.0, |weights| weights[row]);
                f64::from(x[(row * 2 + part) * inner + i]) * f64::from(weight) + f64::from(bias)
            };
            let (mut gate, mut up) = (input(0), input(1));
            if let Activation::LimitedSilu { limit } | Activation::LimitedSwiglu { limit, .. } = activation {
                let limit = f64::from(limit);
                (gate, up) = (gate.min(limit), up.clamp(-limit, limit));
            }
            let (slope, shift) = match activation {
                Activation::LimitedSwiglu { alpha, .. } => (f64::from(alpha), 1.0),
                _ => (1.0, 0.0),
            };
            out[row * params.out_stride as usize + i] =
                f32_of(gate / (1.0 + (-slope * gate).exp()) * (up + shift));
        }
    }
}
