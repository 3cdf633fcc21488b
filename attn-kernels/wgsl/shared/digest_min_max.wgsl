// Digest of keys: channelwise minimum and maximum. Exact, so that both stay bounds.
const VECTORS: u32 = 2u;

// Eight channels: minimum, then maximum.
alias Digest = array<vec4<f32>, 4>;

fn digest_of(k: KeyChunk) -> Digest {
    return Digest(k.low, k.high, k.low, k.high);
}

fn digest_join(a: Digest, b: Digest) -> Digest {
    return Digest(min(a[0], b[0]), min(a[1], b[1]), max(a[2], b[2]), max(a[3], b[3]));
}

fn digest_finish(d: Digest, tokens: u32) -> Digest {
    return d;
}
