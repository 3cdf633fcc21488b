// An upper bound of q . k over the keys of a page or block, from their digest: goes with digest_min_max.
const VECTORS: u32 = 2u;

struct Digest { least: vec4<f32>, most: vec4<f32> }

// Four channels of one page, `quads` before those of the maximum.
fn digest_load(at: u32, quads: u32) -> Digest {
    return Digest(digests[at], digests[at + quads]);
}

fn digest_join(a: Digest, b: Digest) -> Digest {
    return Digest(min(a.least, b.least), max(a.most, b.most));
}

// No product of q with a key is larger, channel by channel.
fn digest_terms(q: vec4<f32>, d: Digest) -> vec4<f32> {
    return max(q * d.least, q * d.most);
}
