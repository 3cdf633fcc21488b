// The value of a block of codes of 8 bits times a block of weights.
// A sum plus one block: its codes `low` and `high`, `d` from quantize_rows. Halves have sums of their own if they have scales.
fn add_block(sum: f32, b: Block, low: vec4<u32>, high: vec4<u32>, d: vec2<f32>) -> f32 {
    var dots = array<i32, 2>();
    #unroll j < 4
        dots[0] += dot4I8Packed(codes(b, j), low[j]);
    #end
    #unroll j < 4
        dots[HALVES - 1u] += dot4I8Packed(codes(b, 4u + j), high[j]);
    #end
    var out = fma(scale(b, 0u) * d.x, f32(dots[0]), sum);
    if (HALVES == 2u) {
        out = fma(scale(b, 1u) * d.x, f32(dots[1]), out);
    }
    if (OFFSET) {
        out = fma(offset(b), d.y, out);
    }
    return out;
}
