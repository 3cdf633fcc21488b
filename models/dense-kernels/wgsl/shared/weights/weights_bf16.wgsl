// BF16: wq [blocks, 4, cols] vec4<u32>, element i in half i % 2 of word i / 2; ws unused.
struct Block { at: u32, step: u32 }

fn load_block(block: u32, col: u32, cols: u32, blocks: u32) -> Block {
    return Block(block * 4u * cols + col, cols);
}

// Weights 4 * i to 4 * i + 3 of the block.
fn quad(b: Block, i: u32) -> vec4<f32> {
    let words = wq_at(b.at + i / 2u * b.step);
    let pair = select(words.xy, words.zw, i % 2u == 1u);
    return bitcast<vec4<f32>>(vec4(pair.x << 16u, pair.x & 0xffff0000u, pair.y << 16u, pair.y & 0xffff0000u));
}
