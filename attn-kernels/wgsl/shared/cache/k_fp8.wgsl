// Keys of a paged cache in fp8 at a scale of 1: K as in kv_fp8, bound alone. What is made of keys at another scale is in
// proportion to it.
#import code_fp8
@group(0) @binding(2) var<storage, read> k_cache: array<vec2<u32>>;

struct KeyChunk { low: vec4<f32>, high: vec4<f32> }

// Chunk `chunk` (elements 8 * chunk on) of the key at `offset` in its block.
fn key_chunk(block_head: u32, chunk: u32, offset: u32) -> KeyChunk {
    let k = k_cache[(block_head * (HEAD_DIM / 8u) + chunk) * BLOCK_SIZE + offset];
    return KeyChunk(values_of(k.x), values_of(k.y));
}

// Factor of the key at `offset`: none.
fn key_scale(block_head: u32, offset: u32) -> f32 {
    return 1.0;
}
