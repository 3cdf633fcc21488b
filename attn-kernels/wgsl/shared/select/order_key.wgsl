// An unsigned number for each f32, in their order. Zeros are equal, NaN counts as -inf.
fn order_key(x: f32) -> u32 {
    var bits = bitcast<u32>(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        bits = 0xff800000u;
    }
    if (bits == 0x80000000u) {
        bits = 0u;
    }
    return bits ^ select(0x80000000u, 0xffffffffu, bits >> 31u == 1u);
}
