// Chunks of eight elements of paged KV in fp8 e4m3, layouts of kv_fp8, as matrices take them: f16 holds every code.
#import code_fp8
alias Chunk = vec2<u32>;

fn chunk_low(c: Chunk, scale: f32) -> vec4<f16> {
    return vec4<f16>(values_of(c.x));
}

fn chunk_high(c: Chunk, scale: f32) -> vec4<f16> {
    return vec4<f16>(values_of(c.y));
}

// Scale of the key at `offset` in its block, and of all keys.
fn k_row_scale(block_head: u32, offset: u32) -> f32 {
    return 1.0;
}

fn k_scale() -> f32 {
    return params.k_scale;
}

fn v_row_scale(block_head: u32, offset: u32) -> f32 {
    return 1.0;
}

fn v_scale() -> f32 {
    return params.v_scale;
}

fn k_at(block_head: u32, chunk: u32, offset: u32) -> u32 {
    return (block_head * CHUNKS + chunk) * BLOCK_SIZE + offset;
}

fn v_at(block_head: u32, chunk: u32, offset: u32) -> u32 {
    return (block_head * BLOCK_SIZE + offset) * CHUNKS + chunk;
}

@group(0) @binding(2) var<storage, read> k_cache: array<Chunk>;
@group(0) @binding(3) var<storage, read> v_cache: array<Chunk>;
