// Codes of 8 bits of a block: v = d * code, d = its largest magnitude / 127.
const NAN: u32 = 0x7fc00000u;
const LARGEST: f32 = 3.4028234e38;

// Codes that an element of 1 would have.
fn codes_a_unit(largest: f32) -> f32 {
    return select(0.0, 127.0 / largest, largest > 0.0);
}

// d, which is NaN if elements are no finite numbers, and d times the sum of the codes.
fn code_scale(largest: f32, all_finite: bool, sum: i32) -> vec2<f32> {
    let d = largest / 127.0;
    let d_bits = select(NAN, bitcast<u32>(d), all_finite);
    return vec2(bitcast<f32>(d_bits), d * f32(sum));
}
