// Blocks of 32 nibbles in `q`, elements j and j + 4 of every eight in the low and high nibble of byte j: codes from 0 to 15.

// Codes 4 * i to 4 * i + 3 of the block, in signed bytes.
fn codes(b: Block, i: u32) -> u32 {
    return (b.q[i / 2u] >> (4u * (i % 2u))) & 0x0f0f0f0fu;
}

// Weights 4 * i to 4 * i + 3 of the block.
fn quad(b: Block, i: u32) -> vec4<f32> {
    // Codes become floats without a conversion: in the mantissa of 2^23, two of them 8 bits up, odd quads 4 bits up.
    let words = vec2(b.q[i / 2u], b.q[i / 2u] >> 16u).xxyy;
    let masks = vec4(0xfu, 0xf00u, 0xfu, 0xf00u) << vec4(4u * (i % 2u));
    let numbers = bitcast<vec4<f32>>((words & masks) | vec4(0x4b000000u)) - 8388608.0;
    let d = scale(b, 0u) * select(1.0, 0.0625, i % 2u == 1u);
    return fma(vec4(d, d / 256.0, d, d / 256.0), numbers, vec4(offset(b)));
}
