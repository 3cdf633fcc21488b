// F32: wq [blocks, 8, cols] vec4<u32>, element i in word i % 4 of vector i / 4; ws unused.
struct Block { at: u32, step: u32 }

fn load_block(block: u32, col: u32, cols: u32, blocks: u32) -> Block {
    return Block(block * 8u * cols + col, cols);
}

// Weights 4 * i to 4 * i + 3 of the block.
fn quad(b: Block, i: u32) -> vec4<f32> {
    return bitcast<vec4<f32>>(wq_at(b.at + i * b.step));
}
