// Q4_K: super-blocks of 256 with (d, dmin) in f16; each block of 32 has a 6-bit scale and minimum and 32 nibbles.
//   wq [blocks, cols] vec4<u32>, elements j and j + 4 of every eight in the low and high nibble of byte j
//   ws [blocks / 2, cols] u32, bytes scale and minimum of two blocks, then [blocks / 8, cols] u32, f16 d low, f16 dmin high
#import nibbles

struct Block { q: vec4<u32>, scales: u32, d: u32 }
const OFFSET: bool = true;
const HALVES: u32 = 1u;

fn load_block(block: u32, col: u32, cols: u32, blocks: u32) -> Block {
    let scales = ws_at(block / 2u * cols + col) >> (16u * (block % 2u));
    return Block(wq_at(block * cols + col), scales, ws_at((blocks / 2u + block / 8u) * cols + col));
}

// Scale of the codes of half `half` of the block.
fn scale(b: Block, half: u32) -> f32 {
    return unpack2x16float(b.d).x * f32(b.scales & 255u);
}

// Addend of every weight.
fn offset(b: Block) -> f32 {
    return -unpack2x16float(b.d).y * f32((b.scales >> 8u) & 255u);
}
