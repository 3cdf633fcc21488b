// Q2_K: super-blocks of 256 with (d, dmin) in f16; each 16 elements have a 4-bit scale and minimum; elements are 2 bits.
//   wq [blocks / 2, cols] vec4<u32>, two words a block: element 16 * h + 4 * q + j at bit 2 * q of byte j of word h
//   ws [blocks / 2, cols] u32, two bytes of scale (low) and minimum of two blocks, then [blocks / 8, cols] u32, f16 d low,
//      f16 dmin high
// Halves of a block have minima of their own, which products of codes cannot add: there are no `codes`.
struct Block { q: vec2<u32>, scales: u32, d: u32 }

fn load_block(block: u32, col: u32, cols: u32, blocks: u32) -> Block {
    let pair = wq_at(block / 2u * cols + col);
    let q = select(pair.xy, pair.zw, block % 2u == 1u);
    let scales = ws_at(block / 2u * cols + col) >> (16u * (block % 2u));
    return Block(q, scales, ws_at((blocks / 2u + block / 8u) * cols + col));
}

// Weights 4 * i to 4 * i + 3 of the block.
fn quad(b: Block, i: u32) -> vec4<f32> {
    let half = i / 4u;
    let numbers = vec4<f32>(unpack4xU8((b.q[half] >> (2u * (i % 4u))) & 0x03030303u));
    let scales = b.scales >> (8u * half);
    let d = unpack2x16float(b.d);
    return fma(vec4(d.x * f32(scales & 15u)), numbers, vec4(-d.y * f32((scales >> 4u) & 15u)));
}
