// Draw of a row, and its noise: Gumbel noise hashed from (seed, position, token), so that the largest sum of a scaled
// logit and its noise is a draw from their softmax, whatever else is drawn.

struct Spec {
    temperature: f32,
    top_p: f32, // 1 = off
    min_p: f32, // 0 = off
    top_k: u32, // 0 = off
    seed_low: u32,
    seed_high: u32,
    position: u32,
    masked: u32, // 1 where minus infinity stands for a forbidden token
}

// Whether the first candidate is one of all tokens; else of those that min-p and top-k leave.
fn takes_all(spec: Spec) -> bool {
    return spec.min_p == 0.0 && (spec.top_k == 0u || spec.top_k >= params.vocab);
}

fn gumbel(spec: Spec, id: u32) -> f32 {
    let bits = mix(spec.seed_low ^ mix(spec.seed_high ^ mix(spec.position ^ mix(id))));
    // Strictly inside (0, 1): with one bit more the largest sum would round up to 1, and its noise be infinite. Near 1, `log` may
    // err by more than the result; a series in the distance, which is exact, does not.
    let u = (f32(bits >> 9u) + 0.5) / 8388608.0;
    let rest = (f32(8388607u - (bits >> 9u)) + 0.5) / 8388608.0;
    let near = rest * (1.0 + rest * (0.5 + rest * (0.33333334 + rest * 0.25)));
    return -log(select(-log(u), near, rest < 0.03125));
}

// A bijection of 32-bit integers that spreads every bit (xor-shift and multiply, three rounds).
fn mix(v: u32) -> u32 {
    var x = v + 0x9e3779b9u;
    x = (x ^ (x >> 16u)) * 0x21f0aaadu;
    x = (x ^ (x >> 15u)) * 0x735a2d97u;
    return x ^ (x >> 15u);
}
