// Stores into a cache of the layouts of kv_published_f16: eight elements a call.
@group(0) @binding(3) var<storage, read_write> k_cache: array<vec4<u32>>;
@group(0) @binding(4) var<storage, read_write> v_cache: array<atomic<u32>>;

fn halves(low: vec4<f32>, high: vec4<f32>) -> vec4<u32> {
    return vec4(pack2x16float(low.xy), pack2x16float(low.zw), pack2x16float(high.xy), pack2x16float(high.zw));
}

const ROW_SCALES: bool = false;

// Scale that a head of a row is stored with: none.
fn stored_scale(most: f32, given: f32) -> f32 {
    return 1.0;
}

fn k_store_scale(block_head: u32, offset: u32, scale: f32) {}

fn v_store_scale(block_head: u32, offset: u32, scale: f32) {}

fn k_store(block_head: u32, chunk: u32, offset: u32, low: vec4<f32>, high: vec4<f32>) {
    k_cache[(block_head * (HEAD_DIM / 8u) + chunk) * BLOCK_SIZE + offset] = halves(low, high);
}

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
