// Paged KV in f32, values with their tokens last: see kv_published_f16.
//   K [num_blocks, num_kv_heads, head_dim / 4, block_size, 4]
//   V [num_blocks, num_kv_heads, head_dim, block_size]
struct kv_chunk { low: vec4<f32>, high: vec4<f32> }

fn kv_low(c: kv_chunk) -> vec4<f32> {
    return c.low;
}

fn kv_high(c: kv_chunk) -> vec4<f32> {
    return c.high;
}

// What kv_low and kv_high make of a zero.
const KV_ZERO: f32 = 0.0;

// Factor on what kv_low and kv_high make of the key at `offset` in its block, less KV_ZERO.
fn k_factor(block_head: u32, offset: u32) -> f32 {
    return 1.0;
}

fn v_factor(block_head: u32, offset: u32) -> f32 {
    return 1.0;
}

// Chunk `chunk` (elements 8 * chunk on) of the key at `offset` in its block.
fn k_at(block_head: u32, chunk: u32, offset: u32) -> u32 {
    return (block_head * (HEAD_DIM / 4u) + chunk * 2u) * BLOCK_SIZE + offset;
}

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
