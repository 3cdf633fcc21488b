// Stores of keys into a cache of the layout of kv_keys_f32, eight elements a call; there are no scales to store.
@group(0) @binding(3) var<storage, read_write> k_cache: array<vec4<f32>>;

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
