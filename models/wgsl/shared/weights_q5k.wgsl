// Q5_K: Q4_K with a fifth bit.
//   wq [blocks, cols] vec4<u32>, low four bits of element i in nibble i % 8 of word i / 8
//   ws [blocks, cols] u32 (scale, minimum << 8), then [blocks / 8, cols] u32, f16 d low, f16 dmin high,
//      then [blocks, cols] u32, the fifth bit of element i in bit i
struct Block { q: vec4<u32>, fifth: u32, d: f32, m: f32 }

fn load_block(block: u32, col: u32, cols: u32, blocks: u32) -> Block {
    let at = block * cols + col;
    let scales = ws[at];
    let d = unpack2x16float(ws[(blocks + block / 8u) * cols + col]);
    let fifth = ws[(blocks + blocks / 8u) * cols + at];
    return Block(wq[at], fifth, d.x * f32(scales & 255u), d.y * f32(scales >> 8u));
}

// Weights 4 * i to 4 * i + 3 of the block.
fn quad(b: Block, i: u32) -> vec4<f32> {
    let n = (vec4(b.q[i / 2u]) >> (vec4(0u, 4u, 8u, 12u) + 16u * (i % 2u))) & vec4(15u);
    let high = (vec4(b.fifth) >> (vec4(0u, 1u, 2u, 3u) + 4u * i)) & vec4(1u);
    return fma(vec4(b.d), vec4<f32>(n | (high << vec4(4u))), vec4(-b.m));
}
