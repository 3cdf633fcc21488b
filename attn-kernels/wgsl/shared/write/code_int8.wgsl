// Codes of 8-bit integers, four a word: to the nearest, ties to even, at most 127.
const MAX_CODE: f32 = 127.0;

fn codes_of(x: vec4<f32>) -> u32 {
    return pack4xI8(vec4<i32>(round(clamp(x, vec4(-MAX_CODE), vec4(MAX_CODE)))));
}

fn values_of(codes: u32) -> vec4<f32> {
    return vec4<f32>(unpack4xI8(codes));
}
