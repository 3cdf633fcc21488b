//! Reference of `expert_down`, on the tensors of a checkpoint as they are stored.

use super::matmul_int8::{Codes, matmul_int8};
use super::moe_combine::moe_combine;
use crate::Tensor;
use crate::kernel::expert_down::ExpertDownParams;
use crate::kernel::matmul::{Epilogue, MatmulParams};
use crate::kernel::moe_combine::MoeCombineParams;

/// Adds the outputs of the experts of each row: `y[row] += sum of factor * (product + bias)`. `pairs` are the inputs
/// of the down projections as codes, and expert `i` has the matrix `[width, 32 * blocks]` in `tensors[i]`.
pub fn expert_down(
    params: &ExpertDownParams,
    pairs: Codes<'_>,
    experts: &[u32],
    factors: &[f32],
    tensors: &[Tensor<'_>],
    biases: Option<&[f32]>,
    y: &mut [f32],
) {
    let ExpertDownParams { rows, width, blocks, .. } = *params;
    let one = MatmulParams::new([1, width, blocks]);
    let mut products = vec![0.0; experts.len() * width as usize];
    for ((pair, expert), product) in (0..).zip(experts).zip(products.chunks_exact_mut(width as usize)) {
        let first = pair * blocks as usize;
        let codes = Codes {
            codes: &pairs.codes[first * 32..][..blocks as usize * 32],
            scales: &pairs.scales[first..][..blocks as usize],
        };
        matmul_int8(&one, Epilogue::Store, codes, &tensors[*expert as usize..=*expert as usize], product);
    }
    moe_combine(&MoeCombineParams { rows, width }, &products, experts, Some(factors), biases, y);
}
