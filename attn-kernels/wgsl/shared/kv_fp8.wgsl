// Paged KV in fp8 e4m3, x = 8: codes, of which a key is params.k_scale times, a value params.v_scale times.
//   K [num_blocks, num_kv_heads, head_dim / 8, block_size, 8]
//   V [num_blocks, num_kv_heads, block_size, head_dim]
// Both are bound as vec2<u32>: one load is eight elements.
alias kv_chunk = vec2<u32>;

// The bits of e4m3 in those of f16 are 2^-8 of its value.
const FP8_IN_F16: f32 = 256.0;

fn kv_low(c: kv_chunk) -> vec4<f32> {
    return vec4(fp8_pair(c.x & 0xffffu), fp8_pair(c.x >> 16u));
}

fn kv_high(c: kv_chunk) -> vec4<f32> {
    return vec4(fp8_pair(c.y & 0xffffu), fp8_pair(c.y >> 16u));
}

fn fp8_pair(codes: u32) -> vec2<f32> {
    let apart = (codes & 0xffu) | ((codes & 0xff00u) << 8u);
    return unpack2x16float(((apart & 0x800080u) << 8u) | ((apart & 0x7f007fu) << 7u));
}

// Factor on what kv_low and kv_high make of the key at `offset` in its block.
fn k_factor(block_head: u32, offset: u32) -> f32 {
    return params.k_scale * FP8_IN_F16;
}

fn v_factor(block_head: u32, offset: u32) -> f32 {
    return params.v_scale * FP8_IN_F16;
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

@group(0) @binding(2) var<storage, read> k_cache: array<vec2<u32>>;
@group(0) @binding(3) var<storage, read> v_cache: array<vec2<u32>>;
