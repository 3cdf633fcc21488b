// The value of a block of codes of 8 bits times a block of weights.
// A sum plus one block: `dots` of its halves (of the whole block where these have one scale), `d` from quantize_rows.
fn add_block(sum: f32, b: Block, dots: array<i32, 2>, d: vec2<f32>) -> f32 {
    var out = fma(scale(b, 0u) * d.x, f32(dots[0]), sum);
    if (HALVES == 2u) {
        out = fma(scale(b, 1u) * d.x, f32(dots[1]), out);
    }
    if (OFFSET) {
        out = fma(offset(b), d.y, out);
    }
    return out;
}
