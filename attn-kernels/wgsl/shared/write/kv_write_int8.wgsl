// Stores into a cache of the layouts of kv_int8: eight elements a call, and a head's scales.
#import kv_write_keys_int8
@group(0) @binding(4) var<storage, read_write> v_cache: array<vec2<u32>>;

fn v_store_scale(block_head: u32, offset: u32, scale: f32) {
    v_cache[block_head * CODES_AND_SCALES + CODES + offset / 2u][offset % 2u] = bitcast<u32>(scale);
}

fn v_store(block_head: u32, chunk: u32, offset: u32, low: vec4<f32>, high: vec4<f32>) {
    v_cache[block_head * CODES_AND_SCALES + offset * (HEAD_DIM / 8u) + chunk] = kv_codes(low, high);
}
