// Stores into a cache of the layouts of kv_fp8: eight elements a call.
#import kv_write_keys_fp8
@group(0) @binding(4) var<storage, read_write> v_cache: array<vec2<u32>>;

fn v_store(block_head: u32, chunk: u32, offset: u32, low: vec4<f32>, high: vec4<f32>) {
    v_cache[(block_head * BLOCK_SIZE + offset) * (HEAD_DIM / 8u) + chunk] = kv_codes(low, high);
}
