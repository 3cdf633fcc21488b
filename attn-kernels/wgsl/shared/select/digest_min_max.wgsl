// Digest of keys: channelwise minimum and maximum.
const VECTORS: u32 = 2u;

// Eight channels: minimum, then maximum.
alias Digest = array<vec4<f32>, 4>;

fn digest_of(k: KeyChunk) -> Digest {
    return Digest(k.low, k.high, k.low, k.high);
}

fn digest_join(a: Digest, b: Digest) -> Digest {
    return Digest(min(a[0], b[0]), min(a[1], b[1]), max(a[2], b[2]), max(a[3], b[3]));
}

// Two channels of vector v.
fn pair_join(a: vec2<f32>, b: vec2<f32>, v: u32) -> vec2<f32> {
    return select(max(a, b), min(a, b), v == 0u);
}

fn pair_finish(pair: vec2<f32>, tokens: u32) -> vec2<f32> {
    return pair;
}
