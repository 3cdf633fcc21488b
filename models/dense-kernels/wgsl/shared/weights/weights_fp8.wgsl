// F8_E4M3: 32 codes of fp8 e4m3 a block, and one scale for four blocks.
//   wq [blocks, 2, cols] vec4<u32>, element i in byte i % 4 of word i / 4
//   ws [blocks / 4, cols] u32, the scale as f32 bits
// Codes are no integers, which products of codes would need: there are no `codes`.
struct Block { low: vec4<u32>, high: vec4<u32>, d: f32 }

// The bits of e4m3 in those of f16 are 2^-8 of its value.
const IN_F16: f32 = 256.0;

fn load_block(block: u32, col: u32, cols: u32, blocks: u32) -> Block {
    let at = block * 2u * cols + col;
    return Block(wq_at(at), wq_at(at + cols), bitcast<f32>(ws_at(block / 4u * cols + col)));
}

// Weights 4 * i to 4 * i + 3 of the block. Of two codes each fills the high byte of a half: its sign stays, the rest moves
// down by one.
fn quad(b: Block, i: u32) -> vec4<f32> {
    let codes = select(b.low[i % 4u], b.high[i % 4u], i >= 4u);
    let even = unpack2x16float(((codes << 8u) & 0x80008000u) | ((codes << 7u) & 0x3f803f80u));
    let odd = unpack2x16float((codes & 0x80008000u) | ((codes >> 1u) & 0x3f803f80u));
    return (b.d * IN_F16) * vec4(even.x, odd.x, even.y, odd.y);
}
