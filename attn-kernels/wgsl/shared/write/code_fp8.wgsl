// Codes of fp8 e4m3, four a word: to the nearest, ties to even, at most 448.
#import fp8_quad
const MAX_CODE: f32 = 448.0;

fn codes_of(x: vec4<f32>) -> u32 {
    let sign = (bitcast<vec4<u32>>(x) >> vec4(24u)) & vec4(0x80u);
    let magnitude = min(abs(x), vec4(MAX_CODE));
    let bits = bitcast<vec4<u32>>(magnitude);
    // The exponent in its new bias, rounded in the 20 bits that go; below 2^-6, steps of 2^-9.
    let normal = ((bits + vec4(0x7ffffu) + ((bits >> vec4(20u)) & vec4(1u))) >> vec4(20u)) - vec4(120u << 3u);
    let small = vec4<u32>(round(magnitude * 512.0));
    let code = select(normal, small, magnitude < vec4(0.015625)) | sign;
    return code.x | (code.y << 8u) | (code.z << 16u) | (code.w << 24u);
}

fn values_of(codes: u32) -> vec4<f32> {
    return fp8_quad(codes);
}
