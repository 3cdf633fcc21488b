// Weights 4 * i to 4 * i + 3 of a block of nibbles: f16_of_codes with fewer instructions a weight.

// As in f16_of_codes.
const UP: f32 = 16.0;

fn quad_f16(b: Block, i: u32) -> vec4<f16> {
    // The nibbles of odd quads lie 4 bits up, which makes them 16 times as large.
    let odd_quad = i % 2u == 1u;
    let mask = select(0x000f000fu, 0x00f000f0u, odd_quad);
    let even = unpack2x16float((b.q[i / 2u] & mask) | 0x64006400u);
    let odd = unpack2x16float(((b.q[i / 2u] >> 8u) & mask) | 0x64006400u);
    let down = select(1.0 / UP, 1.0 / UP / 16.0, odd_quad);
    let numbers = fma(vec4<f16>(vec4(even.x, odd.x, even.y, odd.y)), vec4(f16(down)), vec4(f16(-1024.0 * down)));
    return fma(vec4(f16(UP * scale(b, 0u))), numbers, vec4(f16(offset(b))));
}
