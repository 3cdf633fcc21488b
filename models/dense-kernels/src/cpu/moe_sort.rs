//! Reference of `moe_sort`.

use crate::kernel::moe_sort::MoeSortParams;

/// Returns the pairs ordered by expert, and the tiles `[expert, first entry, end, 0]`; tiles past the last are zero.
pub fn moe_sort(params: &MoeSortParams, experts: &[u32]) -> (Vec<u32>, Vec<[u32; 4]>) {
    let mut order: Vec<u32> = (0..params.pairs).collect();
    order.sort_by_key(|pair| experts[*pair as usize]);
    let mut tiles = Vec::new();
    let mut entry = 0;
    for same in order.chunk_by(|a, b| experts[*a as usize] == experts[*b as usize]) {
        for tile in same.chunks(params.tile as usize) {
            let count = u32::try_from(tile.len()).expect("a tile fits in 32 bits");
            tiles.push([experts[tile[0] as usize], entry, entry + count, 0]);
            entry += count;
        }
    }
    tiles.resize(params.max_tiles as usize, [0; 4]);
    (order, tiles)
}
