// Q6_K: super-blocks of 256 with d in f16; each 16 elements have a signed 8-bit scale; elements are 6 bits less 32.
//   wq [blocks, cols] vec4<u32>, low four bits of elements j and j + 4 of every eight in the nibbles of byte j
//   ws [blocks / 2, cols] u32, two signed bytes of scale of two blocks, then [blocks / 8, cols] u32, f16 d,
//      then [blocks, 2, cols] u32, the high two bits of element 16 * h + 4 * q + j at bit 2 * q of byte j of word h
struct Block { q: vec4<u32>, high: vec2<u32>, scales: u32, d: u32 }
const OFFSET: bool = false;
const HALVES: u32 = 2u;

fn load_block(block: u32, col: u32, cols: u32, blocks: u32) -> Block {
    let scales = ws_at(block / 2u * cols + col) >> (16u * (block % 2u));
    let high = (blocks / 2u + blocks / 8u + block * 2u) * cols + col;
    let d = ws_at((blocks / 2u + block / 8u) * cols + col);
    return Block(wq_at(block * cols + col), vec2(ws_at(high), ws_at(high + cols)), scales, d);
}

// Codes 4 * i to 4 * i + 3 of the block, in signed bytes.
fn codes(b: Block, i: u32) -> u32 {
    let low = (b.q[i / 2u] >> (4u * (i % 2u))) & 0x0f0f0f0fu;
    let six = low | (((b.high[i / 4u] >> (2u * (i % 4u))) & 0x03030303u) << 4u);
    // Less 32: the highest bit turned, and copied to the two above it.
    let turned = six ^ 0x20202020u;
    let sign = turned & 0x20202020u;
    return turned | (sign << 1u) | (sign << 2u);
}

// Scale of the codes of half `half` of the block.
fn scale(b: Block, half: u32) -> f32 {
    return unpack2x16float(b.d).x * f32(i32(b.scales << (24u - 8u * half)) >> 24u);
}

// Addend of every weight.
fn offset(b: Block) -> f32 {
    return 0.0;
}

// Weights 4 * i to 4 * i + 3 of the block.
fn quad(b: Block, i: u32) -> vec4<f32> {
    return scale(b, i / 4u) * vec4<f32>(unpack4xI8(codes(b, i)));
}
