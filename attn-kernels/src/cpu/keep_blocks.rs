//! Reference of `keep_blocks`: the rule of `sparse-select`, and the blocks that any head of a group keeps.

use crate::kernel::keep_blocks::KeepBlocksParams;
use sparse_select::Energies;

/// Returns the blocks that each query block and KV head keeps, `[query_blocks, num_kv_heads]`, from energies
/// `[num_heads, query_blocks, energy_stride]`.
#[must_use]
pub fn keep_blocks(params: &KeepBlocksParams, energies: &[f32], num_heads: usize) -> Vec<Vec<u32>> {
    let (query_blocks, kv_heads) = (params.query_blocks as usize, params.num_kv_heads as usize);
    let rule = Energies {
        alpha: f64::from(params.log2_alpha).exp2(),
        sink_blocks: params.sink_blocks,
        recent_blocks: params.recent_blocks,
        correction: false,
    };
    let group = num_heads / kv_heads;
    let list = |list: usize| {
        let (row, kv) = (list / kv_heads, list % kv_heads);
        let own = params.current + u32::try_from(row).expect("few query blocks");
        let of_head = |head: usize| {
            let energies = &energies[(head * query_blocks + row) * params.energy_stride as usize..];
            let natural = energies[..own as usize].iter().map(|e| f64::from(*e) * std::f64::consts::LN_2);
            rule.kept(&natural.collect::<Vec<_>>(), own).collect::<Vec<_>>()
        };
        let heads: Vec<Vec<bool>> = (kv * group..(kv + 1) * group).map(of_head).collect();
        (0..=own).filter(|block| heads.iter().any(|head| head[*block as usize])).collect()
    };
    (0..query_blocks * kv_heads).map(list).collect()
}
