// Score of a block: q . mean key, summed over the query heads of a set. Goes with digest_mean.
const VECTORS: u32 = 1u;
const NO_SCORE: f32 = 0.0;

struct Digest { mean: vec4<f32> }

fn digest_load(at: u32, quads: u32) -> Digest {
    return Digest(digests[at]);
}

// `share` is the part of the tokens of both that are in b.
fn digest_join(a: Digest, b: Digest, share: f32) -> Digest {
    return Digest(mix(a.mean, b.mean, share));
}

fn digest_term(q: vec4<f32>, d: Digest) -> f32 {
    return dot(q, d.mean);
}

fn score_join(a: f32, b: f32) -> f32 {
    return a + b;
}
