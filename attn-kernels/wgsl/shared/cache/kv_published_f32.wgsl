// Paged KV in f32, values with their tokens last: see kv_published_f16.
//   K [num_blocks, num_kv_heads, head_dim / 4, block_size, 4]
//   V [num_blocks, num_kv_heads, head_dim, block_size]
#import kv_keys_f32

// Element, not chunk.
fn v_at(block_head: u32, chunk: u32, offset: u32) -> u32 {
    return (block_head * HEAD_DIM + chunk * 8u) * BLOCK_SIZE + offset;
}

fn k_load(at: u32) -> kv_chunk {
    return kv_chunk(k_cache[at], k_cache[at + BLOCK_SIZE]);
}

fn v_load(at: u32) -> kv_chunk {
    return kv_chunk(v_four(at), v_four(at + 4u * BLOCK_SIZE));
}

@group(0) @binding(2) var<storage, read> k_cache: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> v_cache: array<f32>;

fn v_four(at: u32) -> vec4<f32> {
    return vec4(
        v_cache[at],
        v_cache[at + BLOCK_SIZE],
        v_cache[at + 2u * BLOCK_SIZE],
        v_cache[at + 3u * BLOCK_SIZE],
    );
}
