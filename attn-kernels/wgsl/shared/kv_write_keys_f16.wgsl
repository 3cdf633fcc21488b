// Stores of keys into a cache of the layout of kv_keys_f16, eight elements a call; there are no scales to store.
@group(0) @binding(3) var<storage, read_write> k_cache: array<vec4<u32>>;

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
