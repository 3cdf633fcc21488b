// Places of keys of paged KV in f32, shared by the layouts of values.
//   K [num_blocks, num_kv_heads, head_dim / 4, block_size, 4]
#import chunk_f32

// Chunk `chunk` (elements 8 * chunk on) of the key at `offset` in its block.
fn k_at(block_head: u32, chunk: u32, offset: u32) -> u32 {
    return (block_head * (HEAD_DIM / 4u) + chunk * 2u) * BLOCK_SIZE + offset;
}
