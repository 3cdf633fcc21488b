// An upper bound of q . k over the keys of a page or block, from their digest: goes with digest_min_max.
// 1: digests may be infinite, as those of int8 are beyond what f16 holds.
#import OVERFLOWS = 0
const VECTORS: u32 = 2u;

// Eight channels: of one page as loaded, and of pages.
struct Loaded { least: DigestChunk, most: DigestChunk }
struct Digest { min_low: vec4<f32>, min_high: vec4<f32>, max_low: vec4<f32>, max_high: vec4<f32> }

// Chunk `chunk` of one page, `chunks` before that of the maximum.
fn digest_load(chunk: u32, chunks: u32) -> Loaded {
    return Loaded(digest_chunk(chunk), digest_chunk(chunk + chunks));
}

fn digest_of(l: Loaded) -> Digest {
    let d = Digest(low_of(l.least), high_of(l.least), low_of(l.most), high_of(l.most));
    if (OVERFLOWS == 0u) {
        return d;
    }
    // No key is beyond the largest f32, and 0 times that is 0.
    let most = vec4(LARGEST);
    return Digest(max(d.min_low, -most), max(d.min_high, -most), min(d.max_low, most), min(d.max_high, most));
}

fn digest_join(a: Digest, b: Digest) -> Digest {
    return Digest(
        min(a.min_low, b.min_low), min(a.min_high, b.min_high),
        max(a.max_low, b.max_low), max(a.max_high, b.max_high),
    );
}

// The largest sizes that products of q with a key have, channel by channel.
fn sizes_of(q: vec4<f32>, least: vec4<f32>, most: vec4<f32>) -> vec4<f32> {
    return abs(q) * max(abs(least), abs(most));
}

// No product of q with a key is larger, channel by channel.
fn terms_of(q: vec4<f32>, least: vec4<f32>, most: vec4<f32>) -> vec4<f32> {
    return q * select(least, most, q > vec4(0.0));
}
