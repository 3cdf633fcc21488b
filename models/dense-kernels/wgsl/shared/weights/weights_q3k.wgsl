// Q3_K: super-blocks of 256 with d in f16; each 16 elements have a signed scale; elements are 3 bits less 4.
//   wq [blocks / 2, cols] vec4<u32>, two words a block: the low two bits of element 16 * h + 4 * q + j at bit 2 * q of byte j of
//      word h
//   ws [blocks / 2, cols] u32, two signed bytes of scale of two blocks, then [blocks / 8, cols] u32, f16 d,
//      then [blocks, cols] u32, the third bit of element 4 * q + j in bit q of byte j
struct Block { low: vec2<u32>, third: u32, scales: u32, d: u32 }
const OFFSET: bool = false;
const HALVES: u32 = 2u;

fn load_block(block: u32, col: u32, cols: u32, blocks: u32) -> Block {
    let pair = wq_at(block / 2u * cols + col);
    let low = select(pair.xy, pair.zw, block % 2u == 1u);
    let scales = ws_at(block / 2u * cols + col) >> (16u * (block % 2u));
    let third = ws_at((blocks / 2u + blocks / 8u + block) * cols + col);
    return Block(low, third, scales, ws_at((blocks / 2u + block / 8u) * cols + col));
}

// Codes 4 * i to 4 * i + 3 of the block, in signed bytes.
fn codes(b: Block, i: u32) -> u32 {
    let low = (b.low[i / 4u] >> (2u * (i % 4u))) & 0x03030303u;
    let three = low | (((b.third >> i) & 0x01010101u) << 2u);
    // Less 4: the highest bit turned, and copied to the five above it.
    let turned = three ^ 0x04040404u;
    return turned | ((turned & 0x04040404u) * 62u);
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
