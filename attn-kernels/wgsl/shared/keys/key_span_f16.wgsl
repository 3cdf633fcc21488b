// Two chunks of a key, a word of which each of eight lanes reads for all. Goes with k_f16.
#import spread_f16

// vec4 from a chunk of a key to the next, in tokens of a block.
const CHUNK_VECTORS: u32 = 1u;

// The lane's share of the first chunks of the key at `offset` in its block.
fn span_at(block_head: u32, offset: u32, lane: u32) -> u32 {
    return (block_head * (HEAD_DIM / 8u) + lane / 4u % 2u) * BLOCK_SIZE + offset;
}

// The chunks at a share, or zeros.
fn key_span(at: u32, seen: bool, lane: u32) -> array<vec4<f32>, 2u * SPAN> {
    return spread(select(0u, k_cache[at][lane % 4u], seen));
}
