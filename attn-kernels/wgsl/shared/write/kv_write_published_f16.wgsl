// Stores into a cache of the layouts of kv_published_f16: eight elements a call.
#import kv_write_keys_f16
@group(0) @binding(4) var<storage, read_write> v_cache: array<atomic<u32>>;

fn v_store(block_head: u32, chunk: u32, offset: u32, low: vec4<f32>, high: vec4<f32>) {
    let words = halves(low, high);
    #unroll i < 8
        let at = (block_head * HEAD_DIM + chunk * 8u + i) * BLOCK_SIZE + offset;
        // The other half of the word is another token's, which another lane may write.
        let shift = at % 2u * 16u;
        let half = (words[i / 2u] >> (i % 2u * 16u)) & 0xffffu;
        atomicAnd(&v_cache[at / 2u], ~(0xffffu << shift));
        atomicOr(&v_cache[at / 2u], half << shift);
    #end
}
