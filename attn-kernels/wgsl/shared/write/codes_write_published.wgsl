// Stores of eight codes of 8 bits from one of v_cache on, in rows of BLOCK_SIZE tokens.
@group(0) @binding(4) var<storage, read_write> v_cache: array<atomic<u32>>;

fn v_store_codes(at: u32, codes: vec2<u32>) {
    // The other bytes of a word are other tokens', which other lanes may write.
    let shift = at % 4u * 8u;
    #unroll i < 8
        let word = (at + i * BLOCK_SIZE) / 4u;
        let code = (codes[i / 4u] >> (i % 4u * 8u)) & 0xffu;
        atomicAnd(&v_cache[word], ~(0xffu << shift));
        atomicOr(&v_cache[word], code << shift);
    #end
}
