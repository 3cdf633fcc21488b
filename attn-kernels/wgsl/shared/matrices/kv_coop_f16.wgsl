// Chunks of eight elements of paged KV in f16, layouts of kv_f16, as matrices take them. A chunk is one load of sixteen
// bytes, which a struct of vec4<f16> is not; compilers fold the way through f32.
alias Chunk = vec4<u32>;

fn chunk_low(c: Chunk, scale: f32) -> vec4<f16> {
    return vec4<f16>(vec4(unpack2x16float(c.x), unpack2x16float(c.y)));
}

fn chunk_high(c: Chunk, scale: f32) -> vec4<f16> {
    return vec4<f16>(vec4(unpack2x16float(c.z), unpack2x16float(c.w)));
}

// Scale of the key at `offset` in its block, and of all keys.
fn k_row_scale(block_head: u32, offset: u32) -> f32 {
    return 1.0;
}

fn k_scale() -> f32 {
    return 1.0;
}

fn v_row_scale(block_head: u32, offset: u32) -> f32 {
    return 1.0;
}

fn v_scale() -> f32 {
    return 1.0;
}

fn k_at(block_head: u32, chunk: u32, offset: u32) -> u32 {
    return (block_head * CHUNKS + chunk) * BLOCK_SIZE + offset;
}

fn v_at(block_head: u32, chunk: u32, offset: u32) -> u32 {
    return (block_head * BLOCK_SIZE + offset) * CHUNKS + chunk;
}

@group(0) @binding(2) var<storage, read> k_cache: array<Chunk>;
@group(0) @binding(3) var<storage, read> v_cache: array<Chunk>;
