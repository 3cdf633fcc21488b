// Values of a paged cache in f32 in the place of keys: V as in kv_f32, bound alone under the name that keys have.
@group(0) @binding(2) var<storage, read> k_cache: array<vec4<f32>>;

struct KeyChunk { low: vec4<f32>, high: vec4<f32> }

// Chunk `chunk` (elements 8 * chunk on) of the value at `offset` in its block.
fn key_chunk(block_head: u32, chunk: u32, offset: u32) -> KeyChunk {
    let at = (block_head * BLOCK_SIZE + offset) * (HEAD_DIM / 4u) + chunk * 2u;
    return KeyChunk(k_cache[at], k_cache[at + 1u]);
}
