// Chunks of eight elements of paged KV in fp8 e4m3, and the keys: what the layouts of values share. A key is params.k_scale
// times its codes, a value params.v_scale times.
//   K [num_blocks, num_kv_heads, head_dim / 8, block_size, 8]
// K is bound as vec4<u32>: one load is eight elements of two keys.
alias kv_chunk = vec2<u32>;

// The bits of e4m3 in those of f16 are 2^-8 of its value.
const FP8_IN_F16: f32 = 256.0;

fn kv_low(c: kv_chunk) -> vec4<f32> {
    return fp8_quad(c.x);
}

fn kv_high(c: kv_chunk) -> vec4<f32> {
    return fp8_quad(c.y);
}

// Two codes at a time, of which each fills the high byte of a half: its sign stays, the rest moves down by one.
fn fp8_quad(codes: u32) -> vec4<f32> {
    let even = unpack2x16float(((codes << 8u) & 0x80008000u) | ((codes << 7u) & 0x3f803f80u));
    let odd = unpack2x16float((codes & 0x80008000u) | ((codes >> 1u) & 0x3f803f80u));
    return vec4(even.x, odd.x, even.y, odd.y);
}

// What kv_low and kv_high make of a zero.
const KV_ZERO: f32 = 0.0;

// Factor on what kv_low and kv_high make of the key at `offset` in its block, less KV_ZERO.
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

fn k_load(at: u32) -> kv_chunk {
    let both = k_cache[at / 2u];
    return select(both.xy, both.zw, at % 2u == 1u);
}

@group(0) @binding(2) var<storage, read> k_cache: array<vec4<u32>>;
