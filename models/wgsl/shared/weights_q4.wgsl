// Q4_0 and Q4_1: 32 nibbles and one (scale, minimum) pair of f16 a block.
//   wq [blocks, cols] vec4<u32>, element i in nibble i % 8 of word i / 8
//   ws [blocks, cols] u32, f16 scale low, f16 minimum high
struct Block { q: vec4<u32>, d: f32, m: f32 }

fn load_block(block: u32, col: u32, cols: u32, blocks: u32) -> Block {
    let at = block * cols + col;
    let dm = unpack2x16float(ws[at]);
    return Block(wq[at], dm.x, dm.y);
}

// Weights 4 * i to 4 * i + 3 of the block.
fn quad(b: Block, i: u32) -> vec4<f32> {
    let n = (vec4(b.q[i / 2u]) >> (vec4(0u, 4u, 8u, 12u) + 16u * (i % 2u))) & vec4(15u);
    return fma(vec4(b.d), vec4<f32>(n), vec4(b.m));
}
