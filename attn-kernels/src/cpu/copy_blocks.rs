//! Reference of `copy_blocks`.

/// Copies block `source` to block `destination` of each pair. Blocks have `block_len` elements.
pub fn copy_blocks<T: Copy>(block_len: usize, pairs: &[[u32; 2]], cache: &mut [T]) {
    for [source, destination] in pairs.iter().map(|pair| pair.map(|n| n as usize)) {
        cache.copy_within(source * block_len..(source + 1) * block_len, destination * block_len);
    }
}
