// Paged KV in int8 with a scale for each token and head, values with their tokens last: see kv_published_f16. Of a block and
// head:
//   K [head_dim / 8, block_size, 8] codes, then [block_size] f32 scales
//   V [head_dim, block_size] codes, then [block_size] f32 scales
#import kv_keys_int8
#import codes_published

fn v_factor(block_head: u32, offset: u32) -> f32 {
    return bitcast<f32>(v_cache[(block_head * CODES_AND_SCALES + CODES) * 2u + offset]);
}

// Code, not chunk.
fn v_at(block_head: u32, chunk: u32, offset: u32) -> u32 {
    return block_head * CODES_AND_SCALES * 8u + chunk * 8u * BLOCK_SIZE + offset;
}
