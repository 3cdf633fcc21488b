// IQ4_NL and IQ4_XS: 32 places in a table of sixteen numbers, and a scale that is the product of two f16.
//   wq [blocks, cols] vec4<u32>, elements j and j + 4 of every eight in the low and high nibble of byte j
//   ws [(blocks + 1) / 2, cols] u32, f16 factors of two blocks, then [(blocks + 7) / 8, cols] u32, f16 factor of eight
struct Block { q: vec4<u32>, factor: u32, d: u32 }
const OFFSET: bool = false;
const HALVES: u32 = 1u;

fn load_block(block: u32, col: u32, cols: u32, blocks: u32) -> Block {
    let factor = ws_at(block / 2u * cols + col) >> (16u * (block % 2u));
    return Block(wq_at(block * cols + col), factor, ws_at(((blocks + 1u) / 2u + block / 8u) * cols + col));
}

// Numbers 4 * i to 4 * i + 3 of the block, in the lowest byte of each word: -127 -104 -83 -65 -49 -35 -22 -10 1 13 25 38 53 69
// 89 113 in place of 0 to 15, four to a word.
fn numbers(b: Block, i: u32) -> vec4<u32> {
    let n = (vec4(b.q[i / 2u] >> (4u * (i % 2u))) >> vec4(0u, 8u, 16u, 24u)) & vec4(15u);
    let upper = (n & vec4(4u)) != vec4(0u);
    let negative = select(vec4(0xbfad9881u), vec4(0xf6eaddcfu), upper);
    let positive = select(vec4(0x26190d01u), vec4(0x71594535u), upper);
    return select(negative, positive, n >= vec4(8u)) >> ((n & vec4(3u)) * 8u);
}

// Numbers 4 * i to 4 * i + 3 of the block, packed to signed bytes.
fn codes(b: Block, i: u32) -> u32 {
    let n = numbers(b, i) & vec4(255u);
    return n.x | (n.y << 8u) | (n.z << 16u) | (n.w << 24u);
}

// Scale of the codes of half `half` of the block.
fn scale(b: Block, half: u32) -> f32 {
    return unpack2x16float(b.factor).x * unpack2x16float(b.d).x;
}

// Addend of every weight.
fn offset(b: Block) -> f32 {
    return 0.0;
}

// Weights 4 * i to 4 * i + 3 of the block.
fn quad(b: Block, i: u32) -> vec4<f32> {
    let signed = bitcast<vec4<i32>>(numbers(b, i) << vec4(24u)) >> vec4(24u);
    return scale(b, 0u) * vec4<f32>(signed);
}
