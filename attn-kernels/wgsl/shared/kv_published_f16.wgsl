// Paged KV in f16, values with their tokens last, as the kernels of the PagedAttention paper have them.
//   K [num_blocks, num_kv_heads, head_dim / 8, block_size, 8]
//   V [num_blocks, num_kv_heads, head_dim, block_size]
alias kv_chunk = vec4<u32>;

fn kv_low(c: kv_chunk) -> vec4<f32> {
    return vec4(unpack2x16float(c.x), unpack2x16float(c.y));
}

fn kv_high(c: kv_chunk) -> vec4<f32> {
    return vec4(unpack2x16float(c.z), unpack2x16float(c.w));
}

// What kv_low and kv_high make of a zero.
const KV_ZERO: f32 = 0.0;

// Factor on what kv_low and kv_high make of the key at `offset` in its block, less KV_ZERO.
fn k_factor(block_head: u32, offset: u32) -> f32 {
    return 1.0;
}

fn v_factor(block_head: u32, offset: u32) -> f32 {
    return 1.0;
}

// Chunk `chunk` (elements 8 * chunk on) of the key at `offset` in its block.
fn k_at(block_head: u32, chunk: u32, offset: u32) -> u32 {
    return (block_head * (HEAD_DIM / 8u) + chunk) * BLOCK_SIZE + offset;
}

// Element, not chunk.
fn v_at(block_head: u32, chunk: u32, offset: u32) -> u32 {
    return (block_head * HEAD_DIM + chunk * 8u) * BLOCK_SIZE + offset;
}

fn k_load(at: u32) -> kv_chunk {
    return k_cache[at];
}

fn v_load(at: u32) -> kv_chunk {
    // Blocks have an even number of tokens: all eight lie in the same half of their words.
    let shift = at % 2u * 16u;
    var words: array<u32, 4>;
    #unroll i < 4
        let first = (at + 2u * i * BLOCK_SIZE) / 2u;
        let low = (v_cache[first] >> shift) & 0xffffu;
        words[i] = low | (((v_cache[first + BLOCK_SIZE / 2u] >> shift) & 0xffffu) << 16u);
    #end
    return vec4(words[0], words[1], words[2], words[3]);
}

@group(0) @binding(2) var<storage, read> k_cache: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read> v_cache: array<u32>;
