// Chunks of eight elements of paged KV in int8, layouts of kv_int8, as matrices take them: f16 of code times scale.
alias Chunk = vec2<u32>;

// vec2<u32> of the codes of a block and head, and of codes and scales.
const CODES: u32 = CHUNKS * BLOCK_SIZE;
const CODES_AND_SCALES: u32 = CODES + BLOCK_SIZE / 2u;

fn chunk_low(c: Chunk, scale: f32) -> vec4<f16> {
    return vec4<f16>(vec4<f32>(unpack4xI8(c.x)) * scale);
}

fn chunk_high(c: Chunk, scale: f32) -> vec4<f16> {
    return vec4<f16>(vec4<f32>(unpack4xI8(c.y)) * scale);
}

// Scale of the key at `offset` in its block, and of all keys.
fn k_row_scale(block_head: u32, offset: u32) -> f32 {
    return bitcast<f32>(k_cache[block_head * CODES_AND_SCALES + CODES + offset / 2u][offset % 2u]);
}

fn k_scale() -> f32 {
    return 1.0;
}

fn v_row_scale(block_head: u32, offset: u32) -> f32 {
    return bitcast<f32>(v_cache[block_head * CODES_AND_SCALES + CODES + offset / 2u][offset % 2u]);
}

fn v_scale() -> f32 {
    return 1.0;
}

fn k_at(block_head: u32, chunk: u32, offset: u32) -> u32 {
    return block_head * CODES_AND_SCALES + chunk * BLOCK_SIZE + offset;
}

fn v_at(block_head: u32, chunk: u32, offset: u32) -> u32 {
    return block_head * CODES_AND_SCALES + offset * CHUNKS + chunk;
}

@group(0) @binding(2) var<storage, read> k_cache: array<Chunk>;
@group(0) @binding(3) var<storage, read> v_cache: array<Chunk>;
