// Vectors to hash: keys of a paged cache, by slot. Codes lie as the keys do, [block, kv_head, offset, words].
#import k = k_f16

fn is_held(slot: u32) -> bool {
    return slot != NO_ENTRY && slot / BLOCK_SIZE - params.first_block < params.num_blocks;
}

fn vector_chunk(slot: u32, head: u32, chunk: u32) -> KeyChunk {
    let held = slot / BLOCK_SIZE - params.first_block;
    return key_chunk(held * params.num_kv_heads + head, chunk, slot % BLOCK_SIZE);
}

// The code that an entry of the dispatch makes.
fn code_of(index: u32, slot: u32, head: u32) -> u32 {
    return (slot / BLOCK_SIZE * params.num_kv_heads + head) * BLOCK_SIZE + slot % BLOCK_SIZE;
}
