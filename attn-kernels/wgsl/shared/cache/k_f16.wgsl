// Keys of a paged cache in f16: K as in kv_f16, bound alone.
@group(0) @binding(2) var<storage, read> k_cache: array<vec4<u32>>;

struct KeyChunk { low: vec4<f32>, high: vec4<f32> }

// Chunk `chunk` (elements 8 * chunk on) of the key at `offset` in its block.
fn key_chunk(block_head: u32, chunk: u32, offset: u32) -> KeyChunk {
    let k = k_cache[(block_head * (HEAD_DIM / 8u) + chunk) * BLOCK_SIZE + offset];
    return KeyChunk(
        vec4(unpack2x16float(k.x), unpack2x16float(k.y)), vec4(unpack2x16float(k.z), unpack2x16float(k.w)),
    );
}

// Factor of the key at `offset`: none.
fn key_scale(block_head: u32, offset: u32) -> f32 {
    return 1.0;
}
