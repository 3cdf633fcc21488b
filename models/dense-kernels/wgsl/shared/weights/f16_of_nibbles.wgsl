// Weights 4 * i to 4 * i + 3 of a block of nibbles: f16_of_codes with fewer instructions a weight.

// As in f16_of_codes.
const UP: f32 = 16.0;

fn quad_f16(b: Block, i: u32) -> vec4<f16> {
    // The nibbles of odd quads lie 4 bits up, which makes them 16 times as large.
    let odd_quad = i % 2u == 1u;
    let mask = select(0x000f000fu, 0x00f000f0u, odd_quad);
    let down = f16(select(1.0 / UP, 1.0 / UP / 16.0, odd_quad));
    let even = pair(b, vec2<f16>(unpack2x16float((b.q[i / 2u] & mask) | 0x64006400u)), down);
    let odd = pair(b, vec2<f16>(unpack2x16float(((b.q[i / 2u] >> 8u) & mask) | 0x64006400u)), down);
    return vec4(even.x, odd.x, even.y, odd.y);
}

// Two weights, whose codes lie in the mantissa of 1024. Pairs are what a device multiplies at a time.
fn pair(b: Block, numbers: vec2<f16>, down: f16) -> vec2<f16> {
    let centred = fma(numbers, vec2(down), vec2(f16(-1024.0) * down));
    return fma(vec2(f16(UP * scale(b, 0u))), centred, vec2(f16(offset(b))));
}
