// Stores of keys into a cache of the layout of kv_keys_fp8: eight elements a call, to the nearest code, ties to even, at most
// 448; there are no scales to store.
#import code_fp8
@group(0) @binding(3) var<storage, read_write> k_cache: array<vec2<u32>>;

const ROW_SCALES: bool = false;

// Scale that a head of a row is stored with: the given one.
fn stored_scale(most: f32, given: f32) -> f32 {
    return given;
}

fn k_store_scale(block_head: u32, offset: u32, scale: f32) {}

fn v_store_scale(block_head: u32, offset: u32, scale: f32) {}

fn k_store(block_head: u32, chunk: u32, offset: u32, low: vec4<f32>, high: vec4<f32>) {
    k_cache[(block_head * (HEAD_DIM / 8u) + chunk) * BLOCK_SIZE + offset] = kv_codes(low, high);
}

fn kv_codes(low: vec4<f32>, high: vec4<f32>) -> vec2<u32> {
    return vec2(codes_of(low), codes_of(high));
}
