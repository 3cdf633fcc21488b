// Paged KV in f16: two elements a word, x = 8.
//   K [num_blocks, num_kv_heads, head_dim / 8, block_size, 8]
//   V [num_blocks, num_kv_heads, block_size, head_dim]
// Both are bound as vec4<u32>: one load is eight elements.
alias kv_chunk = vec4<u32>;

fn kv_low(c: kv_chunk) -> vec4<f32> {
    return vec4(unpack2x16float(c.x), unpack2x16float(c.y));
}

fn kv_high(c: kv_chunk) -> vec4<f32> {
    return vec4(unpack2x16float(c.z), unpack2x16float(c.w));
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
    return (block_head * (HEAD_DIM / 8u) + chunk) * BLOCK_SIZE + offset;
}

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
