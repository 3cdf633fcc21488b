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

// Two channels.
fn pair_join(a: vec2<f32>, b: vec2<f32>, v: u32) -> vec2<f32> {
    return a + b;
}

// The factor of a full page is exact, where WGSL's division need not be, so that hosts round the means of the same keys alike.
fn pair_finish(pair: vec2<f32>, tokens: u32) -> vec2<f32> {
    return select(pair / f32(tokens), pair * (1.0 / f32(BLOCK_SIZE)), tokens == BLOCK_SIZE);
}
