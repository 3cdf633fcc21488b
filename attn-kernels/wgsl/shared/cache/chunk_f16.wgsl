// Chunks of eight elements of paged KV in f16, whatever its layout.
alias kv_chunk = vec4<u32>;

fn kv_low(c: kv_chunk) -> vec4<f32> {
    return vec4(unpack2x16float(c.x), unpack2x16float(c.y));
}

fn kv_high(c: kv_chunk) -> vec4<f32> {
    return vec4(unpack2x16float(c.z), unpack2x16float(c.w));
}

#import kv_unscaled
