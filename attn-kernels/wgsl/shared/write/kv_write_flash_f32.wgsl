// Stores into a cache of the layout of flash_at: eight elements a call.
#import kv_write_unscaled
#import flash_at
@group(0) @binding(3) var<storage, read_write> k_cache: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> v_cache: array<vec4<f32>>;

fn k_store(block_head: u32, chunk: u32, offset: u32, low: vec4<f32>, high: vec4<f32>) {
    let at = 2u * flash_at(block_head, chunk, offset);
    k_cache[at] = low;
    k_cache[at + 1u] = high;
}

fn v_store(block_head: u32, chunk: u32, offset: u32, low: vec4<f32>, high: vec4<f32>) {
    let at = 2u * flash_at(block_head, chunk, offset);
    v_cache[at] = low;
    v_cache[at + 1u] = high;
}
