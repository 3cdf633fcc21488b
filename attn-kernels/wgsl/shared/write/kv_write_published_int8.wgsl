// Stores into a cache of the layouts of kv_published_int8: eight elements a call, and a head's scales.
#import kv_write_keys_int8
#import codes_write_published

fn v_store_scale(block_head: u32, offset: u32, scale: f32) {
    atomicStore(&v_cache[(block_head * CODES_AND_SCALES + CODES) * 2u + offset], bitcast<u32>(scale));
}

fn v_store(block_head: u32, chunk: u32, offset: u32, low: vec4<f32>, high: vec4<f32>) {
    v_store_codes(block_head * CODES_AND_SCALES * 8u + chunk * 8u * BLOCK_SIZE + offset, kv_codes(low, high));
}
