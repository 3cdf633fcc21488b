// Caches of floats have no scales: values are used as they are.
// The result of kv_low and kv_high for a zero.
const KV_ZERO: f32 = 0.0;

// Factor on what kv_low and kv_high make of the key at `offset` in its block, less KV_ZERO.
fn k_factor(block_head: u32, offset: u32) -> f32 {
    return 1.0;
}

fn v_factor(block_head: u32, offset: u32) -> f32 {
    return 1.0;
}
