// Values of a paged cache in f16 in the place of keys: V as in kv_f16, bound alone under the name that keys have.
@group(0) @binding(2) var<storage, read> k_cache: array<vec4<u32>>;

struct KeyChunk { low: vec4<f32>, high: vec4<f32> }

// Chunk `chunk` (elements 8 * chunk on) of the value at `offset` in its block.
fn key_chunk(block_head: u32, chunk: u32, offset: u32) -> KeyChunk {
    let v = k_cache[(block_head * BLOCK_SIZE + offset) * (HEAD_DIM / 8u) + chunk];
    return KeyChunk(
        vec4(unpack2x16float(v.x), unpack2x16float(v.y)), vec4(unpack2x16float(v.z), unpack2x16float(v.w)),
    );
}
