// The layout of FlashAttention's paged kernels, [num_blocks, block_size, num_kv_heads, head_dim], K and V alike: where chunk
// `chunk` (elements 8 * chunk on) of the token at `offset` in its block is, in chunks.
fn flash_at(block_head: u32, chunk: u32, offset: u32) -> u32 {
    let heads = params.num_kv_heads;
    let token = block_head / heads * BLOCK_SIZE + offset;
    return (token * heads + block_head % heads) * (HEAD_DIM / 8u) + chunk;
}
