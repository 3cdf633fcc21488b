// Stores of keys into a cache of the layout of kv_keys_int8: eight elements a call, scaled to -127..127, and a head's scales.
@group(0) @binding(3) var<storage, read_write> k_cache: array<vec2<u32>>;

const CODES: u32 = HEAD_DIM / 8u * BLOCK_SIZE;
const CODES_AND_SCALES: u32 = CODES + BLOCK_SIZE / 2u;

// Scales follow from the largest magnitude of a head of a row.
const ROW_SCALES: bool = true;

// Scale that a head of a row is stored with: max(absmax / 127, 1e-6).
fn stored_scale(most: f32, given: f32) -> f32 {
    return max(most / 127.0, 1e-6);
}

fn k_store_scale(block_head: u32, offset: u32, scale: f32) {
    k_cache[block_head * CODES_AND_SCALES + CODES + offset / 2u][offset % 2u] = bitcast<u32>(scale);
}

fn kv_codes(low: vec4<f32>, high: vec4<f32>) -> vec2<u32> {
    return vec2(pack4xI8(vec4<i32>(round(low))), pack4xI8(vec4<i32>(round(high))));
}

fn k_store(block_head: u32, chunk: u32, offset: u32, low: vec4<f32>, high: vec4<f32>) {
    k_cache[block_head * CODES_AND_SCALES + chunk * BLOCK_SIZE + offset] = kv_codes(low, high);
}
