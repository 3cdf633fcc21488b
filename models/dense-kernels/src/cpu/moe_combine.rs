//! Reference of `moe_combine`.

use super::f32_of;
use crate::kernel::moe_combine::MoeCombineParams;

/// Adds the outputs of each row's experts: `y[row] += sum of weight * (x + bias)`; absent weights count as 1, absent
/// biases as 0.
pub fn moe_combine(
    params: &MoeCombineParams,
    x: &[f32],
    experts: &[u32],
    weights: Option<&[f32]>,
    biases: Option<&[f32]>,
    y: &mut [f32],
) {
    let (rows, width) = (params.rows as usize, params.width as usize);
    let top = experts.len() / rows;
    for (row, y) in y.chunks_exact_mut(width).take(rows).enumerate() {
        for (i, y) in y.iter_mut().enumerate() {
            let of_pair = |pair: usize| {
                let bias = biases.map_or(0.0, |biases| biases[experts[pair] as usize * width + i]);
                let weight = weights.map_or(1.0, |weights| weights[pair]);
                f64::from(weight) * (f64::from(x[pair * width + i]) + f64::from(bias))
            };
            *y = f32_of(f64::from(*y) + (row * top..(row + 1) * top).map(of_pair).sum::<f64>());
        }
    }
}
