// Q4_K: super-blocks of 256 with (d, dmin) in f16; each block of 32 has a 6-bit scale and minimum and 32 nibbles.
//   wq [blocks, cols] vec4<u32>, element i in nibble i % 8 of word i / 8
//   ws [blocks, cols] u32 (scale, minimum << 8), then [blocks / 8, cols] u32, f16 d low, f16 dmin high
struct Block { q: vec4<u32>, d: f32, m: f32 }

fn load_block(block: u32, col: u32, cols: u32, blocks: u32) -> Block {
    let at = block * cols + col;
    let scales = ws[at];
    let d = unpack2x16float(ws[(blocks + block / 8u) * cols + col]);
    return Block(wq[at], d.x * f32(scales & 255u), d.y * f32(scales >> 8u));
}

// Weights 4 * i to 4 * i + 3 of the block.
fn quad(b: Block, i: u32) -> vec4<f32> {
    let n = (vec4(b.q[i / 2u]) >> (vec4(0u, 4u, 8u, 12u) + 16u * (i % 2u))) & vec4(15u);
    return fma(vec4(b.d), vec4<f32>(n), vec4(-b.m));
}
