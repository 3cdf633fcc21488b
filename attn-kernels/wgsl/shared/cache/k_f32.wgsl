// Keys of a paged cache in f32: K as in kv_f32, bound alone.
@group(0) @binding(2) var<storage, read> k_cache: array<vec4<f32>>;

struct KeyChunk { low: vec4<f32>, high: vec4<f32> }

// Chunk `chunk` (elements 8 * chunk on) of the key at `offset` in its block.
fn key_chunk(block_head: u32, chunk: u32, offset: u32) -> KeyChunk {
    let at = (block_head * (HEAD_DIM / 4u) + chunk * 2u) * BLOCK_SIZE + offset;
    return KeyChunk(k_cache[at], k_cache[at + BLOCK_SIZE]);
}

// Factor of the key at `offset`: none.
fn key_scale(block_head: u32, offset: u32) -> f32 {
    return 1.0;
}
