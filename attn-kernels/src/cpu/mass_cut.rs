//! Reference of `mass_cut`.

use sparse_select::topk::order_key;

use crate::kernel::mass_cut::MassCutParams;

/// The blocks that the first turn keeps, `[rows, num_kv_heads]`: of each row the last one, which is known, and as many others by
/// `scores` as suffice when each counts by its bound; f64.
#[must_use]
pub fn first_turn(
    params: &MassCutParams,
    rows: &[[u32; 4]],
    scores: &[f32],
    [bounds, lses]: [&[f32]; 2],
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
        let of_head = |of: &[f32], head: usize, block: u32| {
            f64::from(of[(set * group + head) * stride + block as usize])
        };
        let enough = |taken: usize| {
            (0..group).all(|head| {
                let top = of_head(lses, head, last);
                let sum = |blocks: &[u32]| {
                    blocks.iter().map(|b| (of_head(bounds, head, *b) - top).exp()).sum::<f64>()
                };
                let (kept, dropped) = order.split_at(taken);
                1.0 + sum(kept) >= f64::from(params.odds) * sum(dropped)
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
