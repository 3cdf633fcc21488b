// Rows as they are.
fn row_factor(row: u32, lane: Lane) -> f32 {
    return 1.0;
}

fn normed(v: vec4<f32>, factor: f32, at: u32) -> vec4<f32> {
    return v;
}
