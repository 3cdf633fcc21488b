// Values of a paged cache in fp8 at a scale of 1 in the place of keys: V as in kv_fp8, bound alone under the name that keys
// have.
#import code_fp8
@group(0) @binding(2) var<storage, read> k_cache: array<vec2<u32>>;

struct KeyChunk { low: vec4<f32>, high: vec4<f32> }

// Chunk `chunk` (elements 8 * chunk on) of the value at `offset` in its block.
fn key_chunk(block_head: u32, chunk: u32, offset: u32) -> KeyChunk {
    let v = k_cache[(block_head * BLOCK_SIZE + offset) * (HEAD_DIM / 8u) + chunk];
    return KeyChunk(values_of(v.x), values_of(v.y));
}
