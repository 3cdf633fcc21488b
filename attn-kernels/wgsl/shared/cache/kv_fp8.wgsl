// Paged KV in fp8 e4m3, x = 8: codes, of which a key is params.k_scale times, a value params.v_scale times.
//   K [num_blocks, num_kv_heads, head_dim / 8, block_size, 8]
//   V [num_blocks, num_kv_heads, block_size, head_dim]
// V is bound as vec2<u32>: one load is eight elements.
#import kv_keys_fp8

fn v_at(block_head: u32, chunk: u32, offset: u32) -> u32 {
    return (block_head * BLOCK_SIZE + offset) * (HEAD_DIM / 8u) + chunk;
}

fn v_load(at: u32) -> kv_chunk {
    return v_cache[at];
}

@group(0) @binding(3) var<storage, read> v_cache: array<vec2<u32>>;
