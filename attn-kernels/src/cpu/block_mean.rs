//! Reference of `block_mean`.

use super::{PagedKv, f32_of};
use crate::kernel::block_mean::BlockMeanParams;

/// Computes the mean keys `[num_kv_heads, mean_stride, head_dim]` of blocks of `block` tokens; NaN after the last block.
#[must_use]
pub fn block_mean(cache: &PagedKv<'_>, params: &BlockMeanParams, block: usize, tables: &[u32]) -> Vec<f32> {
    let table = &tables[params.table as usize..];
    let dim = cache.shape.head_dim as usize;
    let mut means = Vec::new();
    for head in 0..params.num_kv_heads as usize {
        for index in 0..params.mean_stride as usize {
            let mut sum = vec![if index < params.blocks as usize { 0.0 } else { f64::NAN }; dim];
            if index < params.blocks as usize {
                for token in index * block..(index + 1) * block {
                    sum.iter_mut().zip(cache.key(table, head, token)).for_each(|(sum, k)| *sum += k);
                }
            }
            means.extend(sum.into_iter().map(|sum| f32_of(sum / block as f64)));
        }
    }
    means
}
