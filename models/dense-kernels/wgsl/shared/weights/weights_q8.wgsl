// Q8_0: 32 signed bytes and one f16 scale a block.
//   wq [blocks, 2, cols] vec4<u32>, element i in byte i % 4 of word i / 4
//   ws [(blocks + 1) / 2, cols] u32, f16 scales of two blocks
struct Block { low: vec4<u32>, high: vec4<u32>, d: u32 }
const OFFSET: bool = false;
const HALVES: u32 = 1u;

fn load_block(block: u32, col: u32, cols: u32, blocks: u32) -> Block {
    let at = block * 2u * cols + col;
    let scales = ws_at(block / 2u * cols + col) >> (16u * (block % 2u));
    return Block(wq_at(at), wq_at(at + cols), scales);
}

// Codes 4 * i to 4 * i + 3 of the block, in signed bytes.
fn codes(b: Block, i: u32) -> u32 {
    return select(b.low[i % 4u], b.high[i % 4u], i >= 4u);
}

// Scale of the codes of half `half` of the block.
fn scale(b: Block, half: u32) -> f32 {
    return unpack2x16float(b.d).x;
}

// Addend of every weight.
fn offset(b: Block) -> f32 {
    return 0.0;
}

// Weights 4 * i to 4 * i + 3 of the block.
fn quad(b: Block, i: u32) -> vec4<f32> {
    return scale(b, 0u) * vec4<f32>(unpack4xI8(codes(b, i)));
}
