// f16 in integers: WGSL leaves open which way pack2x16float rounds.
const LARGEST_BITS: u32 = 0x7bffu;
const INFINITE_BITS: u32 = 0x7c00u;
// Half a unit in the last place, as `rest` has it.
const HALF: u32 = 0x80000000u;

// |x| towards zero as an f16, and what that cuts off, in units of 2^-32 of the last place. One more in `bits` is the next f16.
struct HalfCut { sign: u32, bits: u32, rest: u32 }

fn half_cut(x: f32) -> HalfCut {
    let sign = bitcast<u32>(x) >> 31u;
    let size = bitcast<u32>(x) & 0x7fffffffu;
    if (size >= 0x47800000u) { // 2^16 and more, infinity, NaN
        let finite = size < 0x7f800000u;
        let bits = select(select(INFINITE_BITS, 0x7e00u, size > 0x7f800000u), LARGEST_BITS, finite);
        return HalfCut(sign, bits, select(0u, 0xffffffffu, finite));
    }
    if (size >= 0x38800000u) { // normal in f16: 2^-14 and more
        return HalfCut(sign, (size - 0x38000000u) >> 13u, size << 19u);
    }
    // Below half the smallest f16 every number is as good as another.
    let shift = min(126u - (size >> 23u), 31u);
    let mantissa = select((size & 0x7fffffu) | 0x800000u, 0u, size == 0u);
    return HalfCut(sign, mantissa >> shift, mantissa << (32u - shift));
}
