// Stores into a cache of the layouts of kv_published_fp8: eight elements a call.
#import kv_write_keys_fp8
#import codes_write_published

fn v_store(block_head: u32, chunk: u32, offset: u32, low: vec4<f32>, high: vec4<f32>) {
    v_store_codes((block_head * HEAD_DIM + chunk * 8u) * BLOCK_SIZE + offset, kv_codes(low, high));
}
