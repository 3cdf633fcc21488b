// Index keys in fp8 e4m3 with a scale each, one head: pages of BLOCK_SIZE * HEAD_DIM codes, then BLOCK_SIZE f32 scales.
@group(0) @binding(2) var<storage, read> k_cache: array<u32>;

const PAGE_WORDS: u32 = BLOCK_SIZE * (HEAD_DIM + 4u) / 4u;

struct KeyChunk { low: vec4<f32>, high: vec4<f32> }

// Codes of channels 8 * chunk on of the key at `offset` in its page.
fn key_chunk(block: u32, chunk: u32, offset: u32) -> KeyChunk {
    let at = block * PAGE_WORDS + offset * (HEAD_DIM / 4u) + chunk * 2u;
    return KeyChunk(fp8_values(k_cache[at]), fp8_values(k_cache[at + 1u]));
}

fn key_scale(block: u32, offset: u32) -> f32 {
    return bitcast<f32>(k_cache[block * PAGE_WORDS + BLOCK_SIZE * (HEAD_DIM / 4u) + offset]);
}

fn fp8_values(codes: u32) -> vec4<f32> {
    let code = (vec4(codes) >> vec4(0u, 8u, 16u, 24u)) & vec4(0xffu);
    let exponent = (code >> vec4(3u)) & vec4(15u);
    let mantissa = code & vec4(7u);
    let normal = bitcast<vec4<f32>>(((exponent + 120u) << vec4(23u)) | (mantissa << vec4(20u)));
    let magnitude = select(normal, vec4<f32>(mantissa) * 0.001953125, exponent == vec4(0u));
    return select(magnitude, -magnitude, code >= vec4(128u));
}
