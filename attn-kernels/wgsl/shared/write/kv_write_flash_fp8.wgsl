// Stores into a cache of the layout of flash_at: eight elements a call.
#import kv_write_scaled_fp8
#import flash_at
@group(0) @binding(3) var<storage, read_write> k_cache: array<vec2<u32>>;
@group(0) @binding(4) var<storage, read_write> v_cache: array<vec2<u32>>;

fn k_store(block_head: u32, chunk: u32, offset: u32, low: vec4<f32>, high: vec4<f32>) {
    k_cache[flash_at(block_head, chunk, offset)] = kv_codes(low, high);
}

fn v_store(block_head: u32, chunk: u32, offset: u32, low: vec4<f32>, high: vec4<f32>) {
    v_cache[flash_at(block_head, chunk, offset)] = kv_codes(low, high);
}
