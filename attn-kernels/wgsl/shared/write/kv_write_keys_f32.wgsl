// Stores of keys into a cache of the layout of kv_keys_f32, eight elements a call; there are no scales to store.
@group(0) @binding(3) var<storage, read_write> k_cache: array<vec4<f32>>;

#import kv_write_unscaled

fn k_store(block_head: u32, chunk: u32, offset: u32, low: vec4<f32>, high: vec4<f32>) {
    let at = (block_head * (HEAD_DIM / 4u) + chunk * 2u) * BLOCK_SIZE + offset;
    k_cache[at] = low;
    k_cache[at + BLOCK_SIZE] = high;
}
