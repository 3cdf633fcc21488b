// Chunks of eight elements of paged KV in f32, whatever its layout.
struct kv_chunk { low: vec4<f32>, high: vec4<f32> }

fn kv_low(c: kv_chunk) -> vec4<f32> {
    return c.low;
}

fn kv_high(c: kv_chunk) -> vec4<f32> {
    return c.high;
}

#import kv_unscaled
