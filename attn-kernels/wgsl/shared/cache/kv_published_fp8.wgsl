// Paged KV in fp8 e4m3, values with their tokens last: see kv_published_f16.
//   K [num_blocks, num_kv_heads, head_dim / 8, block_size, 8]
//   V [num_blocks, num_kv_heads, head_dim, block_size]
#import kv_keys_fp8
#import codes_published

// Code, not chunk.
fn v_at(block_head: u32, chunk: u32, offset: u32) -> u32 {
    return (block_head * HEAD_DIM + chunk * 8u) * BLOCK_SIZE + offset;
}
