// A scale for each row that is a power of two, the least that brings its largest magnitude to a code (UE8M0).
const BY_ROW: bool = true;

fn scale_of(amax: f32) -> f32 {
    let bits = bitcast<u32>(max(amax, 1e-4) / MAX_CODE);
    let above = select(0u, 1u, (bits & 0x7fffffu) != 0u);
    return bitcast<f32>(((bits >> 23u) + above) << 23u);
}
