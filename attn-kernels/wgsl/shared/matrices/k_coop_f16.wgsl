// Keys of a paged cache of one head in f16 as matrices take them: K as in kv_f16, 16 channels a load.
struct Chunk { low: vec4<f16>, high: vec4<f16> }

struct KeySpan { first: Chunk, second: Chunk }

@group(0) @binding(2) var<storage, read> k_cache: array<Chunk>;

// First word of the key at `offset` in its block.
fn key_at(block: u32, offset: u32) -> u32 {
    return block * SPANS * 2u * BLOCK_SIZE + offset;
}

// Channels 16 * span on.
fn key_span(at: u32, span: u32) -> KeySpan {
    return KeySpan(k_cache[at + span * 2u * BLOCK_SIZE], k_cache[at + (span * 2u + 1u) * BLOCK_SIZE]);
}

fn key_quads(k: KeySpan) -> array<vec4<f16>, 4> {
    return array(k.first.low, k.first.high, k.second.low, k.second.high);
}

// Four channels in the order in which key_quads has them.
fn staged(x: vec4<f32>) -> vec4<f32> {
    return x;
}

// Value of one of a key's halves.
const K_UNIT: f32 = 1.0;

fn key_scale(block: u32, offset: u32) -> f32 {
    return 1.0;
}
