// An upper bound of q . k over the keys of a page or block, from their digest: goes with digest_min_max.
// 1: digests may be infinite, as those of int8 are beyond what f16 holds.
#import OVERFLOWS = 0
const VECTORS: u32 = 2u;

// Eight channels: of one page as loaded, and of pages.
struct Loaded { least: DigestChunk, most: DigestChunk }
struct Digest { least_low: vec4<f32>, least_high: vec4<f32>, most_low: vec4<f32>, most_high: vec4<f32> }

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
    return Digest(max(d.least_low, -most), max(d.least_high, -most), min(d.most_low, most), min(d.most_high, most));
}

fn digest_join(a: Digest, b: Digest) -> Digest {
    return Digest(
        min(a.least_low, b.least_low), min(a.least_high, b.least_high),
        max(a.most_low, b.most_low), max(a.most_high, b.most_high),
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
