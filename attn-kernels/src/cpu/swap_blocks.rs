//! Reference of `swap_blocks`.

use crate::rows::BlockCopy;

/// Copies block `source` of one pool to block `target` of another for each pair that names a target. Blocks have
/// `block_len` elements.
pub fn swap_blocks<T: Copy>(block_len: usize, pairs: &[[u32; 2]], source: &[T], pool: &mut [T]) {
    let copies = pairs.iter().filter(|pair| pair[1] != BlockCopy::NONE.to);
    for [from, to] in copies.map(|pair| pair.map(|n| n as usize * block_len)) {
        pool[to..to + block_len].copy_from_slice(&source[from..from + block_len]);
    }
}
