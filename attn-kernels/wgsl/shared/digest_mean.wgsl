// Digest of keys: channelwise mean.
const VECTORS: u32 = 1u;

// Eight channels, their sum until the end.
alias Digest = array<vec4<f32>, 2>;

fn digest_of(k: KeyChunk) -> Digest {
    return Digest(k.low, k.high);
}

fn digest_join(a: Digest, b: Digest) -> Digest {
    return Digest(a[0] + b[0], a[1] + b[1]);
}

fn digest_finish(d: Digest, tokens: u32) -> Digest {
    return Digest(d[0] / f32(tokens), d[1] / f32(tokens));
}
