//! Reference of `fetch_pages`.

use crate::kernel::fetch_pages::FetchPagesParams;
use crate::kernel::residency::HEADER;

/// Copies pages of K or V from `host` to `device`: those that `fetches` names, and those of `touched` blocks,
/// `[block, its number on the host]`, that have slots. `host` has only some blocks; pages of other blocks are not
/// copied.
pub fn fetch_pages<T: Copy>(
    params: &FetchPagesParams,
    fetches: &[u32],
    host: &[[T; 4]],
    (places, touched): (&[u32], &[[u32; 2]]),
    device: &mut [[T; 4]],
) {
    let (heads, quads) = (params.num_kv_heads as usize, params.page_quads as usize);
    for (head, of_head) in fetches.chunks_exact(HEADER + 2 * params.num_slots as usize).enumerate() {
        let count = if params.fetch == 1 { of_head[0] as usize } else { 0 };
        let fetched = of_head[HEADER..].chunks_exact(2).take(count).map(|pair| (pair[0], pair[1]));
        let touched = touched.iter().take(params.touched as usize);
        let place = |block: u32| places[block as usize * heads + head];
        let renewed =
            touched.filter(|[block, _]| place(*block) >= 2).map(|[block, from]| (*from, place(*block) - 2));
        let held = |block: u32| block.checked_sub(params.first_block).filter(|at| *at < params.num_blocks);
        let pages = fetched.chain(renewed).filter_map(|(block, slot)| Some((held(block)?, slot)));
        for (block, slot) in pages {
            let [from, to] = [block, slot].map(|at| (at as usize * heads + head) * quads);
            device[to..to + quads].copy_from_slice(&host[from..from + quads]);
        }
    }
}
