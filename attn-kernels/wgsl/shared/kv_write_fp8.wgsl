// Stores into a cache of the layouts of kv_fp8: eight elements a call, to the nearest code, ties to even, at most 448.
@group(0) @binding(3) var<storage, read_write> k_cache: array<vec2<u32>>;
@group(0) @binding(4) var<storage, read_write> v_cache: array<vec2<u32>>;

const ROW_SCALES: bool = false;

// Scale that a head of a row is stored with: the given one.
fn stored_scale(most: f32, given: f32) -> f32 {
    return given;
}

fn k_store_scale(block_head: u32, offset: u32, scale: f32) {}

fn v_store_scale(block_head: u32, offset: u32, scale: f32) {}

fn fp8_codes(x: vec4<f32>) -> u32 {
    let sign = (bitcast<vec4<u32>>(x) >> vec4(24u)) & vec4(0x80u);
    let magnitude = min(abs(x), vec4(448.0));
    let bits = bitcast<vec4<u32>>(magnitude);
    // The exponent in its new bias, rounded in the 20 bits that go; below 2^-6, steps of 2^-9.
    let normal = ((bits + vec4(0x7ffffu) + ((bits >> vec4(20u)) & vec4(1u))) >> vec4(20u)) - vec4(120u << 3u);
    let small = vec4<u32>(round(magnitude * 512.0));
    let code = select(normal, small, magnitude < vec4(0.015625)) | sign;
    return code.x | (code.y << 8u) | (code.z << 16u) | (code.w << 24u);
}

fn k_store(block_head: u32, chunk: u32, offset: u32, low: vec4<f32>, high: vec4<f32>) {
    k_cache[(block_head * (HEAD_DIM / 8u) + chunk) * BLOCK_SIZE + offset] = vec2(fp8_codes(low), fp8_codes(high));
}

fn v_store(block_head: u32, chunk: u32, offset: u32, low: vec4<f32>, high: vec4<f32>) {
    v_cache[(block_head * BLOCK_SIZE + offset) * (HEAD_DIM / 8u) + chunk] = vec2(fp8_codes(low), fp8_codes(high));
}
