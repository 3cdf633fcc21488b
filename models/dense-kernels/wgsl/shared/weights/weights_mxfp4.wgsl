// MXFP4: 32 e2m1 numbers and one power-of-two scale a block.
//   wq [blocks, cols] vec4<u32>, elements j and j + 4 of every eight in the low and high nibble of byte j: sign, two bits of
//      exponent, one of mantissa; no zero is negative
//   ws [blocks, cols] u32, the scale as f32 bits
struct Block { q: vec4<u32>, d: f32 }
const OFFSET: bool = false;
const HALVES: u32 = 1u;

fn load_block(block: u32, col: u32, cols: u32, blocks: u32) -> Block {
    let at = block * cols + col;
    return Block(wq_at(at), bitcast<f32>(ws_at(at)));
}

// Twice the numbers 4 * i to 4 * i + 3 of the block, which are integers, in signed bytes.
fn codes(b: Block, i: u32) -> u32 {
    let n = (b.q[i / 2u] >> (4u * (i % 2u))) & 0x0f0f0f0fu;
    // 0 1 2 3 4 6 8 12 in place of 0 to 7: from 4 on the low two bits count twice, and 7 is two more.
    let high = (n >> 2u) & 0x01010101u;
    let size = (n & 0x07070707u) + (n & (3u * high)) + 2u * (n & (n >> 1u) & high);
    // The complement and one. There is no negative zero, whose one would go into the next byte.
    let negative = (n >> 3u) & 0x01010101u;
    return (size ^ (255u * negative)) + negative;
}

// Scale of the codes of half `half` of the block.
fn scale(b: Block, half: u32) -> f32 {
    return 0.5 * b.d;
}

// Addend of every weight.
fn offset(b: Block) -> f32 {
    return 0.0;
}

// Numbers 4 * i to 4 * i + 3 of the block, 2^-14 times as large, in f16: elements 0 and 2, then 1 and 3. Exponent and mantissa of
// e2m1 become the lowest bits of an exponent and the highest of a mantissa, and so do numbers without an exponent.
fn halves(b: Block, i: u32) -> vec2<u32> {
    let n = b.q[i / 2u] >> (4u * (i % 2u));
    let even = ((n << 9u) & 0x0e000e00u) | ((n << 12u) & 0x80008000u);
    let odd = ((n << 1u) & 0x0e000e00u) | ((n << 4u) & 0x80008000u);
    return vec2(even, odd);
}

// Weights 4 * i to 4 * i + 3 of the block.
fn quad(b: Block, i: u32) -> vec4<f32> {
    let pairs = halves(b, i);
    return (16384.0 * b.d) * vec4(unpack2x16float(pairs.x), unpack2x16float(pairs.y)).xzyw;
}
