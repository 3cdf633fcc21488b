// Weights 4 * i to 4 * i + 3 of a block of e2m1 numbers, whose bits become those of f16 without arithmetic.

// As in f16_of_codes.
const UP: f32 = 16.0;

fn quad_f16(b: Block, i: u32) -> vec4<f16> {
    let pairs = halves(b, i);
    let even = pair(b, vec2<f16>(unpack2x16float(pairs.x)));
    let odd = pair(b, vec2<f16>(unpack2x16float(pairs.y)));
    return vec4(even.x, odd.x, even.y, odd.y);
}

// Two weights of numbers that are 2^-14 times as large.
fn pair(b: Block, numbers: vec2<f16>) -> vec2<f16> {
    return vec2(f16(UP * b.d)) * (numbers * vec2(f16(16384.0 / UP)));
}
