// Chunks of eight elements of paged KV in fp8 e4m3, whatever its layout. A key is params.k_scale times its codes, a value
// params.v_scale times.
#import fp8_quad
alias kv_chunk = vec2<u32>;

fn kv_low(c: kv_chunk) -> vec4<f32> {
    return fp8_quad(c.x);
}

fn kv_high(c: kv_chunk) -> vec4<f32> {
    return fp8_quad(c.y);
}

// Result of kv_low and kv_high for a zero.
const KV_ZERO: f32 = 0.0;

// Factor on what kv_low and kv_high make of the key at `offset` in its block, less KV_ZERO.
fn k_factor(block_head: u32, offset: u32) -> f32 {
    return params.k_scale;
}

fn v_factor(block_head: u32, offset: u32) -> f32 {
    return params.v_scale;
}
