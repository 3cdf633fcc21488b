// Q5_K: Q4_K with a fifth bit.
//   wq [blocks, cols] vec4<u32>, low four bits of elements j and j + 4 of every eight in the nibbles of byte j
//   ws [blocks / 2, cols] u32, bytes scale and minimum of two blocks, then [blocks / 8, cols] u32, f16 d low, f16 dmin high,
//      then [blocks, cols] u32, the fifth bit of element 4 * q + j in bit q of byte j
struct Block { q: vec4<u32>, fifth: u32, scales: u32, d: u32 }
const OFFSET: bool = true;
const HALVES: u32 = 1u;

fn load_block(block: u32, col: u32, cols: u32, blocks: u32) -> Block {
    let at = block * cols + col;
    let scales = ws_at(block / 2u * cols + col) >> (16u * (block % 2u));
    let fifth = ws_at((blocks / 2u + blocks / 8u) * cols + at);
    return Block(wq_at(at), fifth, scales, ws_at((blocks / 2u + block / 8u) * cols + col));
}

// Codes 4 * i to 4 * i + 3 of the block, in signed bytes.
fn codes(b: Block, i: u32) -> u32 {
    let low = (b.q[i / 2u] >> (4u * (i % 2u))) & 0x0f0f0f0fu;
    return low | (((b.fifth >> i) & 0x01010101u) << 4u);
}

// Scale of the codes of half `half` of the block.
fn scale(b: Block, half: u32) -> f32 {
    return unpack2x16float(b.d).x * f32(b.scales & 255u);
}

// Addend of every weight.
fn offset(b: Block) -> f32 {
    return -unpack2x16float(b.d).y * f32((b.scales >> 8u) & 255u);
}

// Weights 4 * i to 4 * i + 3 of the block.
fn quad(b: Block, i: u32) -> vec4<f32> {
    return fma(vec4(scale(b, 0u)), vec4<f32>(unpack4xI8(codes(b, i))), vec4(offset(b)));
}
