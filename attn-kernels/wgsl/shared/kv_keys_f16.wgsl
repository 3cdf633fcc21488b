// Chunks of eight elements of paged KV in f16, and where those of keys are: what the layouts of values share.
//   K [num_blocks, num_kv_heads, head_dim / 8, block_size, 8]
alias kv_chunk = vec4<u32>;

fn kv_low(c: kv_chunk) -> vec4<f32> {
    return vec4(unpack2x16float(c.x), unpack2x16float(c.y));
}

fn kv_high(c: kv_chunk) -> vec4<f32> {
    return vec4(unpack2x16float(c.z), unpack2x16float(c.w));
}

#import kv_unscaled

// Chunk `chunk` (elements 8 * chunk on) of the key at `offset` in its block.
fn k_at(block_head: u32, chunk: u32, offset: u32) -> u32 {
    return (block_head * (HEAD_DIM / 8u) + chunk) * BLOCK_SIZE + offset;
}
