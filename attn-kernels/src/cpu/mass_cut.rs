//! Reference of `mass_cut`.

use sparse_select::topk::order_key;

use crate::kernel::mass_cut::MassCutParams;

/// Returns the blocks that the first round keeps, `[rows, num_kv_heads]`. A row keeps its last block, whose
/// log-sum-exp is known, and others in the order of `scores` until they suffice, each counted with its bound.
#[must_use]
pub fn first_round(
    params: &MassCutParams,
    rows: &[[u32; 4]],
    scores: &[f32],
    bounds: &[[f32; 2]],
    lses: &[f32],
) -> Vec<Vec<u32>> {
    let (kv_heads, stride) = (params.num_kv_heads as usize, params.stride as usize);
    let group = params.num_heads as usize / kv_heads;
    let mut lists = Vec::new();
    for (set, scores) in scores.chunks_exact(stride).enumerate().take(rows.len() * kv_heads) {
        let Some(last) = rows[set / kv_heads][1].div_ceil(params.select_block).checked_sub(1) else {
            lists.push(Vec::new());
            continue;
        };
        let mut order: Vec<u32> = (0..last).collect();
        order.sort_by_key(|block| std::cmp::Reverse(order_key(scores[*block as usize])));
        let at = |head: usize, block: u32| (set * group + head) * stride + block as usize;
        let lost = |head: usize| {
            let of_blocks = (0..=last).map(|b| f64::from(bounds[at(head, b)][1])).fold(0.0, f64::max);
            of_blocks * f64::from(params.slack)
        };
        let enough = |taken: usize| {
            (0..group).all(|head| {
                let top = f64::from(lses[at(head, last)]);
                let sum = |blocks: &[u32]| {
                    blocks.iter().map(|b| (f64::from(bounds[at(head, *b)][0]) - top).exp()).sum::<f64>()
                };
                let (kept, dropped) = order.split_at(taken);
                (1.0 + sum(kept)) * (-lost(head)).exp() >= f64::from(params.odds) * sum(dropped)
            })
        };
        let taken = (0..=order.len()).find(|taken| enough(*taken)).unwrap_or(order.len());
        let mut list = order[..taken].to_vec();
        list.push(last);
        list.sort_unstable();
        lists.push(list);
    }
    lists
}
