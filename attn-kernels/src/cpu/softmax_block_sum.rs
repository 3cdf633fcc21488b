//! Reference of `softmax_block_sum`.

use super::f32_of;
use crate::kernel::softmax_block_sum::SoftmaxBlockSumParams;

/// Computes the sums `[num_heads, query blocks, sum_stride]` of blocks of `parts` `[num_heads, rows, part_stride]`. A
/// block has `block` rows of `block / part` parts each. Blocks that no row of a query block sees get 0.
#[must_use]
pub fn softmax_block_sum(
    params: &SoftmaxBlockSumParams,
    block: usize,
    part: usize,
    parts: &[f32],
) -> Vec<f32> {
    let (rows, stride) = (params.rows as usize, params.part_stride as usize);
    let width = params.sum_stride as usize;
    let mut sums = vec![0.0_f64; parts.len() / stride / block * width];
    for (index, values) in parts.chunks(stride).enumerate() {
        let row = params.first_row as usize + index % rows;
        if !(params.real_first as usize..params.real_end as usize).contains(&row) {
            continue;
        }
        let own = params.key_start as usize + row;
        let columns = params.columns as usize;
        let seen = if params.causal == 1 { columns.min(own + 1) } else { columns };
        let values = &values[..seen.div_ceil(part)];
        let top = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let weights: Vec<f64> = values.iter().map(|&x| (f64::from(x) - f64::from(top)).exp2()).collect();
        let total: f64 = weights.iter().sum();
        let of_block = &mut sums[index / block * width..][..width];
        for (sum, weights) in of_block.iter_mut().zip(weights.chunks(block / part)) {
            *sum += weights.iter().sum::<f64>() / total;
        }
    }
    sums.into_iter().map(f32_of).collect()
}
