// Paged KV in f16, values with their tokens last, as the kernels of the PagedAttention paper have them.
//   K [num_blocks, num_kv_heads, head_dim / 8, block_size, 8]
//   V [num_blocks, num_kv_heads, head_dim, block_size]
#import kv_keys_f16

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
