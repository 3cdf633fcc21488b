// Values of a paged cache in int8, times their scales, in the place of keys: V as in kv_int8, bound alone under the name that
// keys have.
#import code_int8
@group(0) @binding(2) var<storage, read> k_cache: array<vec2<u32>>;

// vec2<u32> of the codes of a block and head, and of codes and scales.
const CODES: u32 = HEAD_DIM / 8u * BLOCK_SIZE;
const CODES_AND_SCALES: u32 = CODES + BLOCK_SIZE / 2u;

struct KeyChunk { low: vec4<f32>, high: vec4<f32> }

// Chunk `chunk` (elements 8 * chunk on) of the value at `offset` in its block.
fn key_chunk(block_head: u32, chunk: u32, offset: u32) -> KeyChunk {
    let base = block_head * CODES_AND_SCALES;
    let v = k_cache[base + offset * (HEAD_DIM / 8u) + chunk];
    let scale = bitcast<f32>(k_cache[base + CODES + offset / 2u][offset % 2u]);
    return KeyChunk(values_of(v.x) * scale, values_of(v.y) * scale);
}
