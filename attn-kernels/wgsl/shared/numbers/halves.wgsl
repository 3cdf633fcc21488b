// Four halves of two words; compilers fold the way through f32.
fn halves(x: u32, y: u32) -> vec4<f16> {
    return vec4<f16>(vec4(unpack2x16float(x), unpack2x16float(y)));
}
