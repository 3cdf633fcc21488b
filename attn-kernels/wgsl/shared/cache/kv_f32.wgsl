// Paged KV in f32, x = 4; chunks of eight elements all the same, so that kernels are written once.
//   K [num_blocks, num_kv_heads, head_dim / 4, block_size, 4]
//   V [num_blocks, num_kv_heads, block_size, head_dim]
// Both are bound as vec4<f32>.
#import kv_keys_f32

fn v_at(block_head: u32, chunk: u32, offset: u32) -> u32 {
    return (block_head * BLOCK_SIZE + offset) * (HEAD_DIM / 4u) + chunk * 2u;
}

fn k_load(at: u32) -> kv_chunk {
    return kv_chunk(k_cache[at], k_cache[at + BLOCK_SIZE]);
}

fn v_load(at: u32) -> kv_chunk {
    return kv_chunk(v_cache[at], v_cache[at + 1u]);
}

@group(0) @binding(2) var<storage, read> k_cache: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> v_cache: array<vec4<f32>>;
