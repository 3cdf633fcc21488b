// Numbers that f16 represents exactly: minima and maxima of keys in f16, and in fp8, whose codes are all f16 numbers.
fn halves_of(channels: vec2<f32>, v: u32) -> u32 {
    return pack2x16float(channels);
}
