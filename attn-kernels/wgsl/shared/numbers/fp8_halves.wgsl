// Codes of fp8 e4m3 as halves. Of four, the first and third, then the second and fourth, as one mask takes them. Magnitudes are
// made as fp8_quad makes them, for drivers may flush halves that are not normal.
#import halves

// The smallest normal magnitude of e4m3.
const FP8_NORMAL: f16 = 0.015625h;

fn four_halves(codes: u32) -> vec4<f16> {
    let even = ((codes << 7u) & 0x3f803f80u) + 0x20002000u;
    let odd = ((codes >> 1u) & 0x3f803f80u) + 0x20002000u;
    let read = halves(even, odd);
    // 1 and -1.
    let sign = halves(((codes << 8u) & 0x80008000u) | 0x3c003c00u, (codes & 0x80008000u) | 0x3c003c00u);
    return min(read, 2.0h * read - FP8_NORMAL) * sign;
}
