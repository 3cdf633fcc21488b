//! Refusals of `swap_blocks`.

use attn_kernels::kernel::swap_blocks;

#[test]
fn swaps_outside_a_pool_or_into_one_block_are_refused() {
    let said = |pairs: &[[u32; 2]]| swap_blocks::check(pairs, 4, 8).unwrap_err().to_string();
    assert_eq!(said(&[[0, 1], [4, 2]]), "swap_blocks: source block + 1 of entry 1 is 5, the limit is 4");
    assert_eq!(said(&[[0, 8]]), "swap_blocks: target block + 1 of entry 0 is 9, the limit is 8");
    assert_eq!(said(&[[0, 1], [1, 2], [2, 1]]), "swap_blocks: copies into one block is 2, the limit is 1");
}
