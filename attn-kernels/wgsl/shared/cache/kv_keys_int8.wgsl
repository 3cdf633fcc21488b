// Chunks of eight elements of paged KV in int8 with a scale for each token and head, and the keys: what the layouts of values
// share. Of a block and head:
//   K [head_dim / 8, block_size, 8] codes, then [block_size] f32 scales
// K is bound as vec4<u32>: one load is eight elements of two keys.
alias kv_chunk = vec2<u32>;

// vec2<u32> of the codes of a block and head, and of codes and scales.
const CODES: u32 = HEAD_DIM / 8u * BLOCK_SIZE;
const CODES_AND_SCALES: u32 = CODES + BLOCK_SIZE / 2u;

fn kv_low(c: kv_chunk) -> vec4<f32> {
    return int8_quad(c.x);
}

fn kv_high(c: kv_chunk) -> vec4<f32> {
    return int8_quad(c.y);
}

// Value of a code of zero: codes are read as 128 more, never negative, and stand in the mantissa of a half of 256, which is
// normal whatever the code: drivers may flush others. Conversions from integers take four times as long on some GPUs.
const KV_ZERO: f32 = 256.0 + 128.0;

fn int8_quad(codes: u32) -> vec4<f32> {
    let even = unpack2x16float(((codes << 2u) & 0x03fc03fcu) ^ 0x5e005e00u);
    let odd = unpack2x16float(((codes >> 6u) & 0x03fc03fcu) ^ 0x5e005e00u);
    return vec4(even.x, odd.x, even.y, odd.y);
}

// Factor on what kv_low and kv_high make of the key at `offset` in its block, less KV_ZERO.
fn k_factor(block_head: u32, offset: u32) -> f32 {
    return bitcast<f32>(k_cache[(block_head * CODES_AND_SCALES + CODES) / 2u + offset / 4u][offset % 4u]);
}

// Chunk `chunk` (elements 8 * chunk on) of the key at `offset` in its block.
fn k_at(block_head: u32, chunk: u32, offset: u32) -> u32 {
    return block_head * CODES_AND_SCALES + chunk * BLOCK_SIZE + offset;
}

fn k_load(at: u32) -> kv_chunk {
    let both = k_cache[at / 2u];
    return select(both.xy, both.zw, at % 2u == 1u);
}

@group(0) @binding(2) var<storage, read> k_cache: array<vec4<u32>>;
