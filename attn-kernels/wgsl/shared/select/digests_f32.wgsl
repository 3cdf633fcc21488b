// Digests of keys in f32, beside caches in f32: eight channels a load.
@group(0) @binding(2) var<storage, read> digests: array<vec4<f32>>;

struct DigestChunk { low: vec4<f32>, high: vec4<f32> }

// Channels 8 * chunk on, counted through the pool.
fn digest_chunk(chunk: u32) -> DigestChunk {
    return DigestChunk(digests[chunk * 2u], digests[chunk * 2u + 1u]);
}

fn low_of(c: DigestChunk) -> vec4<f32> {
    return c.low;
}

fn high_of(c: DigestChunk) -> vec4<f32> {
    return c.high;
}
