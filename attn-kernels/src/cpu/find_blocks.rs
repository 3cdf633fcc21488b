//! Reference of `find_blocks`: `find_blocks_chunked` of `sparse-select` and a vote.

use crate::kernel::find_blocks::FindBlocksParams;
use sparse_select::SelectError;
use sparse_select::xattn::find_blocks::{BlockSums, FindBlocks, Mode, find_blocks_chunked};

/// Returns the blocks that each query block and KV head keeps, `[query_blocks, num_kv_heads]`, from sums `[num_heads,
/// query_blocks, key_blocks]`.
///
/// # Errors
/// When there is neither one threshold nor one for each head.
pub fn find_blocks(
    params: &FindBlocksParams,
    sums: &[f32],
    num_heads: usize,
    thresholds: &[f64],
) -> Result<Vec<Vec<u32>>, SelectError> {
    let (query_blocks, kv_heads) = (params.query_blocks as usize, params.num_kv_heads as usize);
    let sums =
        BlockSums { values: sums, heads: num_heads, query_blocks, key_blocks: params.key_blocks as usize };
    let by = FindBlocks {
        current_index: params.current as usize,
        thresholds,
        num_to_choose: None,
        decoding: false,
        mode: Mode::Prefill,
        causal: params.causal == 1,
    };
    let mask = find_blocks_chunked(&sums, &by)?;
    let group = num_heads / kv_heads;
    let list = |list: usize| {
        let (row, kv) = (list / kv_heads, list % kv_heads);
        let votes = |block: u32| {
            (kv * group..(kv + 1) * group).filter(|&head| mask.get(head, row, block as usize)).count()
        };
        (0..params.key_blocks).filter(|&block| votes(block) >= params.votes as usize).collect()
    };
    Ok((0..query_blocks * kv_heads).map(list).collect())
}
