// Stores into a cache of the layouts of kv_published_f32: eight elements a call.
#import kv_write_keys_f32
@group(0) @binding(4) var<storage, read_write> v_cache: array<f32>;

fn v_store(block_head: u32, chunk: u32, offset: u32, low: vec4<f32>, high: vec4<f32>) {
    let at = (block_head * HEAD_DIM + chunk * 8u) * BLOCK_SIZE + offset;
    #unroll i < 4
        v_cache[at + i * BLOCK_SIZE] = low[i];
        v_cache[at + (4u + i) * BLOCK_SIZE] = high[i];
    #end
}
