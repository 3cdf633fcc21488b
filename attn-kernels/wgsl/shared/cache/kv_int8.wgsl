// Paged KV in int8 with a scale for each token and head, x = 8. Of a block and head:
//   K [head_dim / 8, block_size, 8] codes, then [block_size] f32 scales
//   V [block_size, head_dim] codes, then [block_size] f32 scales
// V is bound as vec2<u32>: one load is eight elements.
#import kv_keys_int8

fn v_factor(block_head: u32, offset: u32) -> f32 {
    return bitcast<f32>(v_cache[block_head * CODES_AND_SCALES + CODES + offset / 2u][offset % 2u]);
}

fn v_at(block_head: u32, chunk: u32, offset: u32) -> u32 {
    return block_head * CODES_AND_SCALES + offset * (HEAD_DIM / 8u) + chunk;
}

fn v_load(at: u32) -> kv_chunk {
    return v_cache[at];
}

@group(0) @binding(3) var<storage, read> v_cache: array<vec2<u32>>;
