// Score of a block: an upper bound of q . k over its keys (Quest), the largest over the query heads of a set. Goes
// with digest_min_max.
const VECTORS: u32 = 2u;
const NO_SCORE: f32 = LOWEST;

struct Digest { least: vec4<f32>, most: vec4<f32> }

// Four channels of one page, `quads` before those of the maximum.
fn digest_load(at: u32, quads: u32) -> Digest {
    return Digest(digests[at], digests[at + quads]);
}

fn digest_join(a: Digest, b: Digest, share: f32) -> Digest {
    return Digest(min(a.least, b.least), max(a.most, b.most));
}

fn digest_term(q: vec4<f32>, d: Digest) -> f32 {
    return dot(max(q * d.least, q * d.most), vec4(1.0));
}

fn score_join(a: f32, b: f32) -> f32 {
    return max(a, b);
}
