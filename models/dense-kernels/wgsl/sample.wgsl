// Draws one token a row: greedy at temperature 0, else from the softmax of logits / temperature restricted by min-p,
// then top-k, then top-p (of what is left). Ties go to the lower id.
//   logits [rows, vocab] f32;  specs [rows] Spec;  maxima, values, ids: what scan_logits made of them;  out [rows] u32
// The candidate of a set is its token with the largest sum of scaled logit and noise. If top-p leaves it out, it leaves out
// all less likely ones, so the next candidate is one of the likelier ones; each time about half as many. A row's token
// depends neither on the other rows nor on how lanes share the work. It is below vocab, or NO_ID where a logit of
// the row is not finite.
// Grid: a workgroup a row. CPU reference: src/cpu/sample.rs
#import TOKENS_PER_LANE = 32
#import WG = 256
#import scan = scan_tree
#import order_key
#import narrow
#import best
#import noise
#import leading

struct SampleParams { rows: u32, vocab: u32, parts: u32, neg_inf: f32 }

@group(0) @binding(0) var<uniform> params: SampleParams;
@group(0) @binding(1) var<storage, read> logits: array<f32>;
@group(0) @binding(2) var<storage, read> specs: array<Spec>;
@group(0) @binding(3) var<storage, read> maxima: array<f32>;
@group(0) @binding(4) var<storage, read> values: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read> ids: array<vec2<u32>>;
@group(0) @binding(6) var<storage, read_write> out: array<u32>;

@compute @workgroup_size(WG)
fn sample(@builtin(workgroup_id) group: vec3<u32>, lane: Lane) {
    let row = group.x;
    let spec = specs[row];
    var own = Best(params.neg_inf, NO_ID);
    for (var part = place_of(lane); part < params.parts; part += WG) {
        let at = row * params.parts + part;
        // A token, even where none can be taken.
        own.id = select(own.id, ids[at].x, own.id == NO_ID);
        take(&own, values[at].x, ids[at].x);
    }
    let top = best_of_lanes(own, place_of(lane));
    var id = top.id;
    let is_bad = bitcast<u32>(top.value) == 0x7f800000u;
    if (spec.temperature > 0.0 && !is_bad) {
        id = draw(row, spec, top.value, lane);
    }
    if (place_of(lane) == 0u) {
        out[row] = select(select(top.id, id, id < params.vocab), NO_ID, is_bad);
    }
}

// The candidate of a set of tokens, and their mass.
struct Set { candidate: Best, mass: f32 }

fn draw(row: u32, spec: Spec, top: f32, lane: Lane) -> u32 {
    let everything = Leading(0u, params.vocab);
    var those: Set;
    if (takes_all(spec)) {
        those = of_parts(row, spec, top, lane);
    } else {
        var kept = everything;
        if (spec.min_p > 0.0) {
            kept.edge = order_key(top + log(spec.min_p) * spec.temperature);
        }
        if (spec.top_k > 0u && spec.top_k < params.vocab) {
            kept = leading(row, kept.edge, order_key(top), spec.top_k, lane);
        }
        those = of_tokens(row, spec, top, kept, lane);
    }
    var candidate = those.candidate.id;
    if (spec.top_p < 1.0) {
        // The likeliest token alone has mass 1; the bound keeps it where top_p is 0.
        let goal = max(spec.top_p * those.mass, 1e-30);
        while (candidate < params.vocab) {
            let likelier = Leading(order_key(logits[row * params.vocab + candidate]), candidate);
            those = of_tokens(row, spec, top, likelier, lane);
            // Also where one is no number.
            if (!(those.mass >= goal)) {
                break;
            }
            candidate = those.candidate.id;
        }
    }
    return candidate;
}

// All tokens, from what is known of the parts.
fn of_parts(row: u32, spec: Spec, top: f32, lane: Lane) -> Set {
    var own = Best(params.neg_inf, NO_ID);
    var mass = 0.0;
    for (var part = place_of(lane); part < params.parts; part += WG) {
        let value = values[row * params.parts + part];
        let id = ids[row * params.parts + part].y;
        if (id != NO_ID) {
            let scaled = (value.x - top) / spec.temperature;
            take(&own, scaled + value.y, id);
            mass += exp(scaled) * value.z;
        }
    }
    return Set(best_of_lanes(own, place_of(lane)), sum_of_lanes(mass, place_of(lane)));
}

// The tokens that lead.
fn of_tokens(row: u32, spec: Spec, top: f32, leaders: Leading, lane: Lane) -> Set {
    var own = Best(params.neg_inf, NO_ID);
    var mass = 0.0;
    for (var block = place_of(lane); block < params.parts * WG; block += WG) {
        if (order_key(maxima[row * params.parts * WG + block]) < leaders.edge) {
            continue;
        }
        var id = first_of(block);
        for (var i = 0u; i < TOKENS_PER_LANE && id < params.vocab; i++) {
            let logit = logits[row * params.vocab + id];
            if (leads(leaders, order_key(logit), id)) {
                let scaled = (logit - top) / spec.temperature;
                take(&own, scaled + gumbel(spec, id), id);
                mass += exp(scaled);
            }
            id += WG;
        }
    }
    return Set(best_of_lanes(own, place_of(lane)), sum_of_lanes(mass, place_of(lane)));
}
