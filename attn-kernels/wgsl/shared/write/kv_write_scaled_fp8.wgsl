// Codes of fp8 e4m3 to store, eight elements a call: to the nearest, ties to even, at most 448, at a given scale, of which none
// is stored.
#import code_fp8

const ROW_SCALES: bool = false;

// Scale that a head of a row is stored with: the given one.
fn stored_scale(most: f32, given: f32) -> f32 {
    return given;
}

fn k_store_scale(block_head: u32, offset: u32, scale: f32) {}

fn v_store_scale(block_head: u32, offset: u32, scale: f32) {}

fn kv_codes(low: vec4<f32>, high: vec4<f32>) -> vec2<u32> {
    return vec2(codes_of(low), codes_of(high));
}
