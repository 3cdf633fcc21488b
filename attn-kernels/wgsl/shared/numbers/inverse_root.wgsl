// 1 / sqrt(x) for a mean of squares x: no number where x is none or beyond f32, for which 0 would make a row of zeros.
fn inverse_root(x: f32) -> f32 {
    let bits = bitcast<u32>(x);
    return select(1.0 / sqrt(x), bitcast<f32>(bits | 0x7fc00000u), bits >= 0x7f800000u);
}
