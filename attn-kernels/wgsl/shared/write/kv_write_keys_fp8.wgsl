// Stores of keys into a cache of the layout of kv_keys_fp8.
#import kv_write_scaled_fp8
@group(0) @binding(3) var<storage, read_write> k_cache: array<vec2<u32>>;

fn k_store(block_head: u32, chunk: u32, offset: u32, low: vec4<f32>, high: vec4<f32>) {
    k_cache[(block_head * (HEAD_DIM / 8u) + chunk) * BLOCK_SIZE + offset] = kv_codes(low, high);
}
