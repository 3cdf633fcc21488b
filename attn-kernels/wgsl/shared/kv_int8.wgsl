// Paged KV in int8 with a scale for each token and head, x = 8. Of a block and head:
//   K [head_dim / 8, block_size, 8] codes, then [block_size] f32 scales
//   V [block_size, head_dim] codes, then [block_size] f32 scales
// Both are bound as vec2<u32>: one load is eight elements.
alias kv_chunk = vec2<u32>;

// vec2<u32> of the codes of a block and head, and of codes and scales.
const CODES: u32 = HEAD_DIM / 8u * BLOCK_SIZE;
const CODES_AND_SCALES: u32 = CODES + BLOCK_SIZE / 2u;

fn kv_low(c: kv_chunk) -> vec4<f32> {
    return vec4<f32>(unpack4xI8(c.x));
}

fn kv_high(c: kv_chunk) -> vec4<f32> {
    return vec4<f32>(unpack4xI8(c.y));
}

// Factor on what kv_low and kv_high make of the key at `offset` in its block.
fn k_factor(block_head: u32, offset: u32) -> f32 {
    return bitcast<f32>(k_cache[block_head * CODES_AND_SCALES + CODES + offset / 2u][offset % 2u]);
}

fn v_factor(block_head: u32, offset: u32) -> f32 {
    return bitcast<f32>(v_cache[block_head * CODES_AND_SCALES + CODES + offset / 2u][offset % 2u]);
}

// Chunk `chunk` (elements 8 * chunk on) of the key at `offset` in its block.
fn k_at(block_head: u32, chunk: u32, offset: u32) -> u32 {
    return block_head * CODES_AND_SCALES + chunk * BLOCK_SIZE + offset;
}

fn v_at(block_head: u32, chunk: u32, offset: u32) -> u32 {
    return block_head * CODES_AND_SCALES + offset * (HEAD_DIM / 8u) + chunk;
}

fn k_load(at: u32) -> kv_chunk {
    return k_cache[at];
}

fn v_load(at: u32) -> kv_chunk {
    return v_cache[at];
}

@group(0) @binding(2) var<storage, read> k_cache: array<vec2<u32>>;
@group(0) @binding(3) var<storage, read> v_cache: array<vec2<u32>>;
