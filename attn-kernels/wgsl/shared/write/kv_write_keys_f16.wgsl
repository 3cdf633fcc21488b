// Stores of keys into a cache of the layout of kv_keys_f16, eight elements a call; there are no scales to store.
@group(0) @binding(3) var<storage, read_write> k_cache: array<vec4<u32>>;

#import pack_halves
#import kv_write_unscaled

fn k_store(block_head: u32, chunk: u32, offset: u32, low: vec4<f32>, high: vec4<f32>) {
    k_cache[(block_head * (HEAD_DIM / 8u) + chunk) * BLOCK_SIZE + offset] = halves(low, high);
}
