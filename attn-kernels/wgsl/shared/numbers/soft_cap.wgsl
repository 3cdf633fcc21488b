// cap * tanh(x / cap); no number where x is none or infinite, so that what is wrong stays so.
fn soft_cap(x: f32, cap: f32) -> f32 {
    // tanh of large numbers is not a number on some drivers, and 1 in f32 beyond 9.01.
    let bounded = cap * tanh(clamp(x / cap, -10.0, 10.0));
    let bits = bitcast<u32>(x) | 0x80000000u;
    return select(bounded, bitcast<f32>(bits | 0x7fc00000u), bits >= 0xff800000u);
}
