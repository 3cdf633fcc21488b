// Log-probabilities of one token of a row, and of the likeliest ones: natural logarithms, ties to the lower id.
//   logits [.., vocab] f32;  asks [..] (row, tokens);  targets [..] u32, by row;
//   ids [asks, stride] u32, log_probs [asks, stride] f32: the target, then the likeliest `tokens` ones
// Grid: a workgroup for each ask. The row is read once for each token asked for, and twice.
// CPU reference: src/cpu/top_logits.rs
#import best
override WG: u32 = 256u;

// Asks are from `first` on, and write there.
struct TopLogitsParams { vocab: u32, stride: u32, first: u32, neg_inf: f32 }

struct TopAsk { row: u32, tokens: u32 }

@group(0) @binding(0) var<uniform> params: TopLogitsParams;
@group(0) @binding(1) var<storage, read> logits: array<f32>;
@group(0) @binding(2) var<storage, read> asks: array<TopAsk>;
@group(0) @binding(3) var<storage, read> targets: array<u32>;
@group(0) @binding(4) var<storage, read_write> ids: array<u32>;
@group(0) @binding(5) var<storage, read_write> log_probs: array<f32>;

var<workgroup> sums: array<f32, WG>;

@compute @workgroup_size(WG)
fn top_logits(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let ask = asks[params.first + group.x];
    let base = ask.row * params.vocab;
    let at = (params.first + group.x) * params.stride;
    var top = after(lane, base, Best(0.0, NO_ID));
    let normaliser = top.value + log(mass(lane, base, top.value));
    if (lane == 0u) {
        // A row without a number to draw by leaves no id of the vocabulary.
        let token = min(targets[ask.row], params.vocab - 1u);
        ids[at] = token;
        log_probs[at] = logits[base + token] - normaliser;
    }
    for (var n = 1u; n <= ask.tokens; n++) {
        if (lane == 0u) {
            ids[at + n] = top.id;
            log_probs[at + n] = top.value - normaliser;
        }
        if (n < ask.tokens) {
            top = after(lane, base, top);
        }
    }
}

// The likeliest token behind `last`; of all, where that is none.
fn after(lane: u32, base: u32, last: Best) -> Best {
    var own = Best(params.neg_inf, NO_ID);
    for (var i = lane; i < params.vocab; i += WG) {
        let logit = logits[base + i];
        if (last.id == NO_ID || logit < last.value || (logit == last.value && i > last.id)) {
            take(&own, logit, i);
        }
    }
    return best_of_lanes(lane, own);
}

// The sum of exp(logit - top) over the row.
fn mass(lane: u32, base: u32, top: f32) -> f32 {
    var sum = 0.0;
    for (var i = lane; i < params.vocab; i += WG) {
        sum += exp(logits[base + i] - top);
    }
    sums[lane] = sum;
    for (var half = WG / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (lane < half) {
            sums[lane] += sums[lane + half];
        }
    }
    return workgroupUniformLoad(&sums[0]);
}
