// Weights 4 * i to 4 * i + 3 of a block, rounded to f16.
fn quad_f16(b: Block, i: u32) -> vec4<f16> {
    return vec4<f16>(quad(b, i));
}
