// Four codes of fp8 e4m3. Drivers may flush halves that are not normal, and floats, so none is made here.

// The smallest normal magnitude of e4m3.
const FP8_NORMAL: f32 = 0.015625;

// Two codes at a time, of which each fills the high byte of a half: its sign stays, the rest moves down by one, and the exponent
// grows by the difference of the biases. A magnitude of FP8_NORMAL and more is right then. Below, the half has an exponent of its
// own and with it a leading bit that the code lacks: FP8_NORMAL / 2 too much, and the mantissa at half its value.
fn fp8_quad(codes: u32) -> vec4<f32> {
    let even = ((codes << 8u) & 0x80008000u) | (((codes << 7u) & 0x3f803f80u) + 0x20002000u);
    let odd = (codes & 0x80008000u) | (((codes >> 1u) & 0x3f803f80u) + 0x20002000u);
    let low = unpack2x16float(even);
    let high = unpack2x16float(odd);
    let read = vec4(low.x, high.x, low.y, high.y);
    let magnitude = min(abs(read), 2.0 * abs(read) - FP8_NORMAL);
    return bitcast<vec4<f32>>(bitcast<vec4<u32>>(magnitude) | (bitcast<vec4<u32>>(read) & vec4(0x80000000u)));
}
