// Q8_0: 32 signed bytes and one f16 scale a block.
//   wq [blocks, 2, cols] vec4<u32>, element i in byte i % 4 of word i / 4
//   ws [blocks, cols] u32, f16 scale
struct Block { low: vec4<u32>, high: vec4<u32>, d: f32 }

fn load_block(block: u32, col: u32, cols: u32, blocks: u32) -> Block {
    let at = block * 2u * cols + col;
    return Block(wq[at], wq[at + cols], unpack2x16float(ws[block * cols + col]).x);
}

// Weights 4 * i to 4 * i + 3 of the block.
fn quad(b: Block, i: u32) -> vec4<f32> {
    let word = select(b.low[i % 4u], b.high[i % 4u], i >= 4u);
    let bytes = vec4<i32>(vec4(word) << vec4(24u, 16u, 8u, 0u)) >> vec4(24u);
    return b.d * vec4<f32>(bytes);
}
