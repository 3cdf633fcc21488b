// Q4_0 and Q4_1: 32 nibbles and one (scale, minimum) pair of f16 a block.
//   wq [blocks, cols] vec4<u32>, elements j and j + 4 of every eight in the low and high nibble of byte j
//   ws [blocks, cols] u32, f16 scale low, f16 minimum high
#import nibbles

struct Block { q: vec4<u32>, dm: u32 }
const OFFSET: bool = true;
const HALVES: u32 = 1u;

fn load_block(block: u32, col: u32, cols: u32, blocks: u32) -> Block {
    let at = block * cols + col;
    return Block(wq_at(at), ws_at(at));
}

// Scale of the codes of half `half` of the block.
fn scale(b: Block, half: u32) -> f32 {
    return unpack2x16float(b.dm).x;
}

// Addend of every weight.
fn offset(b: Block) -> f32 {
    return unpack2x16float(b.dm).y;
}
