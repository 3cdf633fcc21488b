// Eight codes of 8 bits from one of v_cache on, in rows of BLOCK_SIZE tokens: those of one token.
fn v_load(at: u32) -> kv_chunk {
    // Blocks have a multiple of four tokens: all eight lie in the same byte of their words.
    let shift = at % 4u * 8u;
    var words: array<u32, 2>;
    #unroll i < 8
        let code = (v_cache[(at + i * BLOCK_SIZE) / 4u] >> shift) & 0xffu;
        words[i / 4u] |= code << (i % 4u * 8u);
    #end
    return vec2(words[0], words[1]);
}

@group(0) @binding(3) var<storage, read> v_cache: array<u32>;
