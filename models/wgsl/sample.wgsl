// Draws one token a row: greedy at temperature 0, else from the softmax of logits / temperature restricted by min-p,
// then top-k, then top-p (of what is left). Ties go to the lower id.
//   logits [rows, vocab] f32;  specs [rows] Spec;  out [rows] u32
// The draw is Gumbel-max with noise hashed from (seed, position, token id): a row's token depends neither on the other
// rows nor on how lanes share the work. A workgroup a row. CPU reference: src/cpu/sample.rs
override WG: u32 = 256u;

struct SampleParams { rows: u32, vocab: u32, neg_inf: f32, pad0: u32 }

struct Spec {
    temperature: f32,
    top_p: f32, // 1 = off
    min_p: f32, // 0 = off
    top_k: u32, // 0 = off
    seed_low: u32,
    seed_high: u32,
    position: u32,
    pad0: u32,
}

@group(0) @binding(0) var<uniform> params: SampleParams;
@group(0) @binding(1) var<storage, read> logits: array<f32>;
@group(0) @binding(2) var<storage, read> specs: array<Spec>;
@group(0) @binding(3) var<storage, read_write> out: array<u32>;

var<workgroup> best_value: array<f32, WG>;
var<workgroup> best_id: array<u32, WG>;
var<workgroup> sums: array<f32, WG>;

// What is kept: keys above `edge`, and of those equal to it the ids below `below`.
struct Kept { edge: u32, below: u32 }

// An order-preserving integer of a float.
fn key_of(v: f32) -> u32 {
    let bits = bitcast<u32>(v);
    return select(bits | 0x80000000u, ~bits, bits >> 31u == 1u);
}

fn keeps(kept: Kept, key: u32, id: u32) -> bool {
    return key > kept.edge || (key == kept.edge && id < kept.below);
}

@compute @workgroup_size(WG)
fn sample(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let base = group.x * params.vocab;
    let spec = specs[group.x];
    var value = params.neg_inf;
    var id = 0xffffffffu;
    for (var i = lane; i < params.vocab; i += WG) {
        take(&value, &id, logits[base + i], i);
    }
    let top = best(lane, value, id);
    if (spec.temperature == 0.0) {
        if (lane == 0u) {
            out[group.x] = best_id[0];
        }
        return;
    }
    let kept = choose(lane, base, spec, top);
    value = params.neg_inf;
    id = 0xffffffffu;
    for (var i = lane; i < params.vocab; i += WG) {
        let logit = logits[base + i];
        if (keeps(kept, key_of(logit), i)) {
            take(&value, &id, (logit - top) / spec.temperature + gumbel(spec, i), i);
        }
    }
    workgroupBarrier();
    best(lane, value, id);
    if (lane == 0u) {
        out[group.x] = best_id[0];
    }
}

fn take(value: ptr<function, f32>, id: ptr<function, u32>, v: f32, i: u32) {
    if (*id == 0xffffffffu || v > *value) {
        *value = v;
        *id = i;
    }
}

// The largest value of all lanes, ties to the lower id, left in best_value[0] and best_id[0].
fn best(lane: u32, value: f32, id: u32) -> f32 {
    best_value[lane] = value;
    best_id[lane] = id;
    for (var half = WG / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (lane < half) {
            let v = best_value[lane + half];
            let i = best_id[lane + half];
            if (v > best_value[lane] || (v == best_value[lane] && i < best_id[lane]) || best_id[lane] == 0xffffffffu) {
                best_value[lane] = v;
                best_id[lane] = i;
            }
        }
    }
    return workgroupUniformLoad(&best_value[0]);
}

fn choose(lane: u32, base: u32, spec: Spec, top: f32) -> Kept {
    var kept = Kept(0u, params.vocab);
    if (spec.min_p > 0.0) {
        kept.edge = key_of(top + log(spec.min_p) * spec.temperature);
    }
    if (spec.top_k > 0u && spec.top_k < params.vocab) {
        kept = narrow(lane, base, spec, top, kept, f32(spec.top_k), false);
    }
    if (spec.top_p < 1.0) {
        let all = measure(lane, base, spec, top, kept, kept, true);
        // The likeliest token alone has mass 1; the bound keeps it where top_p is 0.
        kept = narrow(lane, base, spec, top, kept, max(spec.top_p * all, 1e-30), true);
    }
    return kept;
}

// The smallest part of `within`, from the largest logits down, whose mass (or count) reaches `goal`.
fn narrow(lane: u32, base: u32, spec: Spec, top: f32, within: Kept, goal: f32, mass: bool) -> Kept {
    var edge = 0u;
    for (var bit = 32u; bit > 0u; bit--) {
        let next = edge | (1u << (bit - 1u));
        if (measure(lane, base, spec, top, within, Kept(next, params.vocab), mass) >= goal) {
            edge = next;
        }
    }
    if (edge < within.edge) {
        // Less than the goal to begin with.
        return within;
    }
    // Ids of keys equal to the edge, from the lowest until the goal is reached.
    var below = 0u;
    for (var bit = 32u - countLeadingZeros(params.vocab); bit > 0u; bit--) {
        let next = below + (1u << (bit - 1u));
        if (next <= params.vocab && measure(lane, base, spec, top, within, Kept(edge, next), mass) < goal) {
            below = next;
        }
    }
    return Kept(edge, min(below + 1u, params.vocab));
}

// Mass (or count) of what both sets keep.
fn measure(lane: u32, base: u32, spec: Spec, top: f32, a: Kept, b: Kept, mass: bool) -> f32 {
    var sum = 0.0;
    for (var i = lane; i < params.vocab; i += WG) {
        let logit = logits[base + i];
        let key = key_of(logit);
        if (keeps(a, key, i) && keeps(b, key, i)) {
            sum += select(1.0, exp((logit - top) / spec.temperature), mass);
        }
    }
    workgroupBarrier();
    sums[lane] = sum;
    for (var half = WG / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (lane < half) {
            sums[lane] += sums[lane + half];
        }
    }
    return workgroupUniformLoad(&sums[0]);
}

fn gumbel(spec: Spec, id: u32) -> f32 {
    let bits = mix(spec.seed_low ^ mix(spec.seed_high ^ mix(spec.position ^ mix(id))));
    // Strictly inside (0, 1): with one bit more the largest sum would round up to 1, and its noise be infinite.
    let u = (f32(bits >> 9u) + 0.5) / 8388608.0;
    return -log(-log(u));
}

// A bijection of 32-bit integers that spreads every bit (xor-shift and multiply, three rounds).
fn mix(v: u32) -> u32 {
    var x = v + 0x9e3779b9u;
    x = (x ^ (x >> 16u)) * 0x21f0aaadu;
    x = (x ^ (x >> 15u)) * 0x735a2d97u;
    return x ^ (x >> 15u);
}
