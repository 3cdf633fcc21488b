// Codes of fp8 e4m3 as halves: the bits of a code in those of f16 are 2^-8 of its value. Of four, the first and third, then the
// second and fourth, as one mask takes them.
#import halves

fn four_halves(codes: u32) -> vec4<f16> {
    let even = ((codes << 8u) & 0x80008000u) | ((codes << 7u) & 0x3f803f80u);
    let odd = (codes & 0x80008000u) | ((codes >> 1u) & 0x3f803f80u);
    return halves(even, odd);
}
