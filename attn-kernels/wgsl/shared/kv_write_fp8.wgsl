// Stores into a cache of the layouts of kv_fp8: eight elements a call, to the nearest code, ties to even, at most 448.
#import code_fp8
@group(0) @binding(3) var<storage, read_write> k_cache: array<vec2<u32>>;
@group(0) @binding(4) var<storage, read_write> v_cache: array<vec2<u32>>;

const ROW_SCALES: bool = false;

// Scale that a head of a row is stored with: the given one.
fn stored_scale(most: f32, given: f32) -> f32 {
    return given;
}

fn k_store_scale(block_head: u32, offset: u32, scale: f32) {}

fn v_store_scale(block_head: u32, offset: u32, scale: f32) {}

fn k_store(block_head: u32, chunk: u32, offset: u32, low: vec4<f32>, high: vec4<f32>) {
    k_cache[(block_head * (HEAD_DIM / 8u) + chunk) * BLOCK_SIZE + offset] = vec2(codes_of(low), codes_of(high));
}

fn v_store(block_head: u32, chunk: u32, offset: u32, low: vec4<f32>, high: vec4<f32>) {
    v_cache[(block_head * BLOCK_SIZE + offset) * (HEAD_DIM / 8u) + chunk] = vec2(codes_of(low), codes_of(high));
}
