// Minima (vector 0) and maxima that f16 may not represent become the next f16 below and above, so that both stay bounds. Beyond
// the largest f16 that is an infinity.
#import half_cut

fn halves_of(channels: vec2<f32>, v: u32) -> u32 {
    return half_outward(channels.x, v) | (half_outward(channels.y, v) << 16u);
}

fn half_outward(x: f32, v: u32) -> u32 {
    let cut = half_cut(x);
    // Sign 1 is away from zero where it goes down, sign 0 where it goes up.
    let away = cut.rest != 0u && (cut.sign == 0u) == (v == 1u);
    return (cut.sign << 15u) | (cut.bits + select(0u, 1u, away));
}
