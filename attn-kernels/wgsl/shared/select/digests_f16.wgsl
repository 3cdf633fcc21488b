// Digests of keys in f16, beside caches in f16 and in codes: eight channels a load, 16 bytes.
@group(0) @binding(2) var<storage, read> digests: array<vec4<u32>>;

// As it lies in memory, so that loads in flight take few registers.
alias DigestChunk = vec4<u32>;

// Channels 8 * chunk on, counted through the pool.
fn digest_chunk(chunk: u32) -> DigestChunk {
    return digests[chunk];
}

fn low_of(c: DigestChunk) -> vec4<f32> {
    return vec4(unpack2x16float(c.x), unpack2x16float(c.y));
}

fn high_of(c: DigestChunk) -> vec4<f32> {
    return vec4(unpack2x16float(c.z), unpack2x16float(c.w));
}
