// Paged KV in f16: two elements a word, x = 8.
//   K [num_blocks, num_kv_heads, head_dim / 8, block_size, 8]
//   V [num_blocks, num_kv_heads, block_size, head_dim]
// Both are bound as vec4<u32>: one load is eight elements.
#import kv_keys_f16

fn v_at(block_head: u32, chunk: u32, offset: u32) -> u32 {
    return (block_head * BLOCK_SIZE + offset) * (HEAD_DIM / 8u) + chunk;
}

fn k_load(at: u32) -> kv_chunk {
    return k_cache[at];
}

fn v_load(at: u32) -> kv_chunk {
    return v_cache[at];
}

@group(0) @binding(2) var<storage, read> k_cache: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read> v_cache: array<vec4<u32>>;
