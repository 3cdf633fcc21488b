// Stores into a cache of the layouts of kv_published_f32: eight elements a call.
@group(0) @binding(3) var<storage, read_write> k_cache: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> v_cache: array<f32>;

const ROW_SCALES: bool = false;

// Scale that a head of a row is stored with: none.
fn stored_scale(most: f32, given: f32) -> f32 {
    return 1.0;
}

fn k_store_scale(block_head: u32, offset: u32, scale: f32) {}

fn v_store_scale(block_head: u32, offset: u32, scale: f32) {}

fn k_store(block_head: u32, chunk: u32, offset: u32, low: vec4<f32>, high: vec4<f32>) {
    let at = (block_head * (HEAD_DIM / 4u) + chunk * 2u) * BLOCK_SIZE + offset;
    k_cache[at] = low;
    k_cache[at + BLOCK_SIZE] = high;
}

fn v_store(block_head: u32, chunk: u32, offset: u32, low: vec4<f32>, high: vec4<f32>) {
    let at = (block_head * HEAD_DIM + chunk * 8u) * BLOCK_SIZE + offset;
    #unroll i < 4
        v_cache[at + i * BLOCK_SIZE] = low[i];
        v_cache[at + (4u + i) * BLOCK_SIZE] = high[i];
    #end
}
