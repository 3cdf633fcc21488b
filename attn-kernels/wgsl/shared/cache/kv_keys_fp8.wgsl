// Keys of paged KV in fp8 e4m3: what the layouts of values share.
//   K [num_blocks, num_kv_heads, head_dim / 8, block_size, 8]
// K is bound as vec4<u32>: one load is eight elements of two keys.
#import chunk_fp8

// Chunk `chunk` (elements 8 * chunk on) of the key at `offset` in its block.
fn k_at(block_head: u32, chunk: u32, offset: u32) -> u32 {
    return (block_head * (HEAD_DIM / 8u) + chunk) * BLOCK_SIZE + offset;
}

fn k_load(at: u32) -> kv_chunk {
    let both = k_cache[at / 2u];
    return select(both.xy, both.zw, at % 2u == 1u);
}

@group(0) @binding(2) var<storage, read> k_cache: array<vec4<u32>>;
