// Means are rounded to the nearest f16, ties to even, at most to the largest finite one, so that scores stay numbers.
#import half_cut

fn halves_of(channels: vec2<f32>, v: u32) -> u32 {
    return half_nearest(channels.x) | (half_nearest(channels.y) << 16u);
}

fn half_nearest(x: f32) -> u32 {
    let cut = half_cut(x);
    let away = cut.rest > HALF || (cut.rest == HALF && (cut.bits & 1u) == 1u);
    let bits = cut.bits + select(0u, 1u, away);
    return (cut.sign << 15u) | select(min(bits, LARGEST_BITS), bits, bits > INFINITE_BITS);
}
