// Q6_K: super-blocks of 256 with d in f16; each 16 elements have a signed 8-bit scale; elements are 6 bits less 32.
//   wq [blocks, cols] vec4<u32>, low four bits of element i in nibble i % 8 of word i / 8
//   ws [blocks, cols] u32 (two signed bytes of scale), then [blocks / 8, cols] u32, f16 d,
//      then [blocks, 2, cols] u32, the high two bits of element i at bit 2 * (i % 16) of word i / 16
struct Block { q: vec4<u32>, high: vec2<u32>, d: vec2<f32> }

fn load_block(block: u32, col: u32, cols: u32, blocks: u32) -> Block {
    let at = block * cols + col;
    let scales = vec2<i32>(vec2(ws[at]) << vec2(24u, 16u)) >> vec2(24u);
    let d = unpack2x16float(ws[(blocks + block / 8u) * cols + col]).x;
    let high = (blocks + blocks / 8u + block * 2u) * cols + col;
    return Block(wq[at], vec2(ws[high], ws[high + cols]), d * vec2<f32>(scales));
}

// Weights 4 * i to 4 * i + 3 of the block.
fn quad(b: Block, i: u32) -> vec4<f32> {
    let n = (vec4(b.q[i / 2u]) >> (vec4(0u, 4u, 8u, 12u) + 16u * (i % 2u))) & vec4(15u);
    let high = (vec4(b.high[i / 4u]) >> (vec4(0u, 2u, 4u, 6u) + 8u * (i % 4u))) & vec4(3u);
    return b.d[i / 4u] * (vec4<f32>(n | (high << vec4(4u))) - 32.0);
}
