// Paged KV in fp8 e4m3, layouts of kv_fp8, as paged_decode_coop stages it. Stands in for kv_staged_f16.
#import kv_staged_codes
#import fp8_halves

fn keys_at(lane: u32, block_head: u32, offset: u32) -> u32 {
    return block_head * (CHUNKS * BLOCK_SIZE / 2u) + keys_in_block(lane, offset);
}

fn values_at(lane: u32, block_head: u32, offset: u32) -> u32 {
    return block_head * (CHUNKS * BLOCK_SIZE / 2u) + values_in_block(lane, offset);
}

fn key_factors(quad: u32, block_head: u32, offset: u32) -> vec4<f32> {
    return vec4(1.0);
}

fn value_factors(lane: u32, block_head: u32, offset: u32) -> array<f32, LOADS> {
    return array<f32, LOADS>();
}

fn value_half(factor: f32) -> f16 {
    return 1.0h;
}

fn k_unit() -> f32 {
    return 256.0 * params.k_scale;
}

fn v_unit() -> f32 {
    return 256.0 * params.v_scale;
}
