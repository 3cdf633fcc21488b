// MXFP4: 32 e2m1 numbers and one power-of-two scale a block.
//   wq [blocks, cols] vec4<u32>, element i in nibble i % 8 of word i / 8: sign, two bits of exponent, one of mantissa
//   ws [blocks, cols] u32, the scale as f32 bits
struct Block { q: vec4<u32>, d: f32 }

fn load_block(block: u32, col: u32, cols: u32, blocks: u32) -> Block {
    let at = block * cols + col;
    return Block(wq[at], bitcast<f32>(ws[at]));
}

// Weights 4 * i to 4 * i + 3 of the block.
fn quad(b: Block, i: u32) -> vec4<f32> {
    let n = (vec4(b.q[i / 2u]) >> (vec4(0u, 4u, 8u, 12u) + 16u * (i % 2u))) & vec4(15u);
    let mantissa = vec4<f32>(n & vec4(1u));
    let exponent = (n >> vec4(1u)) & vec4(3u);
    // Exponent 0 is subnormal: mantissa / 2. Else (1 + mantissa / 2) * 2^(exponent - 1).
    let normal = (1.0 + 0.5 * mantissa) * vec4<f32>(vec4(1u) << (max(exponent, vec4(1u)) - vec4(1u)));
    let size = select(normal, 0.5 * mantissa, exponent == vec4(0u));
    return b.d * select(size, -size, n >= vec4(8u));
}
