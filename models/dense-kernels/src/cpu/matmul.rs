//! Reference of `matmul`, on the tensors of a checkpoint as they are stored.

use super::f32_of;
use crate::Tensor;
use crate::kernel::matmul::{Epilogue, MatmulParams};

/// Computes `y[m, n] = sum over k of x[m, k] * w[n, k]`, then the epilogue. `parts` has one matrix
/// `[cols, 32 * blocks]`, or two: gate and up. Rows of `x` are `4 * x_stride` f32 apart. Rows of `y` are `y_stride`
/// f32 apart, and results begin in column `y_offset`.
pub fn matmul(params: &MatmulParams, epilogue: Epilogue, x: &[f32], parts: &[Tensor<'_>], y: &mut [f32]) {
    let (width, cols) = (params.blocks as usize * 32, params.cols as usize);
    let weights: Vec<Vec<f32>> = parts.iter().map(Tensor::to_f32).collect();
    for row in 0..params.rows as usize {
        let x = &x[row * params.x_stride as usize * 4..][..width];
        let y = &mut y[row * params.y_stride as usize + params.y_offset as usize..][..cols];
        for (col, y) in y.iter_mut().enumerate() {
            let dot = |w: &Vec<f32>| {
                let w = &w[col * width..][..width];
                x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum::<f64>()
            };
            *y = f32_of(match epilogue {
                Epilogue::Store => dot(&weights[0]),
                Epilogue::Add => f64::from(*y) + dot(&weights[0]),
                Epilogue::GeluMul => gelu(dot(&weights[0])) * dot(&weights[1]),
                Epilogue::SiluMul => silu(dot(&weights[0])) * dot(&weights[1]),
            });
        }
    }
}

fn gelu(x: f64) -> f64 {
    let inner = std::f64::consts::FRAC_2_PI.sqrt() * (x + 0.044715 * x.powi(3));
    0.5 * x * (1.0 + inner.tanh())
}

fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}
