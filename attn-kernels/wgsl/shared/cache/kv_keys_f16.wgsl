// Places of keys of paged KV in f16, shared by the layouts of values.
//   K [num_blocks, num_kv_heads, head_dim / 8, block_size, 8]
#import chunk_f16

// Chunk `chunk` (elements 8 * chunk on) of the key at `offset` in its block.
fn k_at(block_head: u32, chunk: u32, offset: u32) -> u32 {
    return (block_head * (HEAD_DIM / 8u) + chunk) * BLOCK_SIZE + offset;
}
