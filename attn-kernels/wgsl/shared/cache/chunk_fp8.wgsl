// Chunks of eight elements of paged KV in fp8 e4m3, whatever its layout. A key is params.k_scale times its codes, a value
// params.v_scale times.
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

// Result of kv_low and kv_high for a zero.
const KV_ZERO: f32 = 0.0;

// Factor on what kv_low and kv_high make of the key at `offset` in its block, less KV_ZERO.
fn k_factor(block_head: u32, offset: u32) -> f32 {
    return params.k_scale * FP8_IN_F16;
}

fn v_factor(block_head: u32, offset: u32) -> f32 {
    return params.v_scale * FP8_IN_F16;
}
