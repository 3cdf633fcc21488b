// Index keys in fp8 e4m3 as matrices take them: layout of k_index_fp8, 16 codes a load.
#import fp8_halves
@group(0) @binding(2) var<storage, read> k_cache: array<vec4<u32>>;

alias KeySpan = vec4<u32>;

const PAGE: u32 = BLOCK_SIZE * (HEAD_DIM + 4u) / 16u;
// Value of one of a key's halves.
const K_UNIT: f32 = 256.0;

// First word of the key at `offset` in its page.
fn key_at(block: u32, offset: u32) -> u32 {
    return block * PAGE + offset * SPANS;
}

// Channels 16 * span on.
fn key_span(at: u32, span: u32) -> KeySpan {
    return k_cache[at + span];
}

fn key_quads(k: KeySpan) -> array<vec4<f16>, 4> {
    return array(four_halves(k.x), four_halves(k.y), four_halves(k.z), four_halves(k.w));
}

// Four channels in the order in which key_quads has them.
fn staged(x: vec4<f32>) -> vec4<f32> {
    return x.xzyw;
}

fn key_scale(block: u32, offset: u32) -> f32 {
    return bitcast<f32>(k_cache[block * PAGE + BLOCK_SIZE * SPANS + offset / 4u][offset % 4u]);
}
