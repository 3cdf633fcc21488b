// Chunks of eight elements of paged KV in fp8 e4m3, layouts of kv_fp8, as matrices take them: f16 holds every code.
alias Chunk = vec2<u32>;

fn chunk_low(c: Chunk, scale: f32) -> vec4<f16> {
    return fp8_quad(c.x);
}

fn chunk_high(c: Chunk, scale: f32) -> vec4<f16> {
    return fp8_quad(c.y);
}

// The bits of e4m3 in those of f16 are 2^-8 of its value.
fn fp8_quad(codes: u32) -> vec4<f16> {
    return vec4<f16>(vec4(fp8_pair(codes & 0xffffu), fp8_pair(codes >> 16u)) * 256.0);
}

fn fp8_pair(codes: u32) -> vec2<f32> {
    let apart = (codes & 0xffu) | ((codes & 0xff00u) << 8u);
    return unpack2x16float(((apart & 0x800080u) << 8u) | ((apart & 0x7f007fu) << 7u));
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
