// Stores into a cache of the layouts of kv_f32: eight elements a call.
#import kv_write_keys_f32
@group(0) @binding(4) var<storage, read_write> v_cache: array<vec4<f32>>;

fn v_store(block_head: u32, chunk: u32, offset: u32, low: vec4<f32>, high: vec4<f32>) {
    let at = (block_head * BLOCK_SIZE + offset) * (HEAD_DIM / 4u) + chunk * 2u;
    v_cache[at] = low;
    v_cache[at + 1u] = high;
}
