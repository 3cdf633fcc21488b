// Caches of floats store no scales.
const ROW_SCALES: bool = false;

// Scale that a head of a row is stored with: none.
fn stored_scale(most: f32, given: f32) -> f32 {
    return 1.0;
}

fn k_store_scale(block_head: u32, offset: u32, scale: f32) {}

fn v_store_scale(block_head: u32, offset: u32, scale: f32) {}
