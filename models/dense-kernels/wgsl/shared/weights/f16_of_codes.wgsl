// Weights 4 * i to 4 * i + 3 of a block of codes, in f16 throughout: two weights an instruction, where f32 would take one and
// then round. The scale is rounded too: an error of 2^-12 of a weight beside that of its code.

// Scales of small weights would lose bits in f16, so they are this many times larger there, and the numbers smaller.
const UP: f32 = 16.0;

fn quad_f16(b: Block, i: u32) -> vec4<f16> {
    // Codes, from 0 on instead of -128, become floats without a conversion: in the mantissa of 1024.
    let bytes = codes(b, i) ^ 0x80808080u;
    let even = pair(b, i, vec2<f16>(unpack2x16float((bytes & 0x00ff00ffu) | 0x64006400u)));
    let odd = pair(b, i, vec2<f16>(unpack2x16float(((bytes >> 8u) & 0x00ff00ffu) | 0x64006400u)));
    return vec4(even.x, odd.x, even.y, odd.y);
}

// Two weights of quad `i`, as f16_of_nibbles takes them.
fn pair(b: Block, i: u32, numbers: vec2<f16>) -> vec2<f16> {
    let centred = fma(numbers, vec2(f16(1.0 / UP)), vec2(f16(-1152.0 / UP)));
    return fma(vec2(f16(UP * scale(b, i * HALVES / 8u))), centred, vec2(f16(offset(b))));
}
