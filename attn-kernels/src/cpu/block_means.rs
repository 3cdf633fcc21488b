//! Reference of `block_means`.

use super::{PagedKv, f32_of};
use crate::kernel::block_means::BlockMeansParams;

/// Computes the mean keys and mean values, `[num_kv_heads, mean_stride, head_dim]` each, of blocks of `block` tokens;
/// NaN after the last block.
#[must_use]
pub fn block_means(
    cache: &PagedKv<'_>,
    params: &BlockMeansParams,
    block: usize,
    tables: &[u32],
) -> [Vec<f32>; 2] {
    let table = &tables[params.table as usize..];
    let dim = cache.shape.head_dim as usize;
    let of = |values: bool| {
        let mut means = Vec::new();
        for head in 0..params.num_kv_heads as usize {
            for index in 0..params.mean_stride as usize {
                let is_block = index < params.blocks as usize;
                let mut sum = vec![if is_block { 0.0 } else { f64::NAN }; dim];
                for token in (index * block..(index + 1) * block).filter(|_| is_block) {
                    let row: Vec<f64> = match values {
                        true => cache.value(table, head, token).collect(),
                        false => cache.key(table, head, token).collect(),
                    };
                    sum.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
                }
                means.extend(sum.into_iter().map(|sum| f32_of(sum / block as f64)));
            }
        }
        means
    };
    [of(false), of(true)]
}
