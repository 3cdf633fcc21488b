// Log-probabilities of one token of a row, and of the likeliest ones: natural logarithms, ties to the lower id.
//   logits [.., vocab] f32;  requests [..] (row, tokens);  targets [..] u32, by row;  maxima, values: what scan_logits made of
//   the logits;  ids [requests, stride] u32, log_probs [requests, stride] f32: the target, then the likeliest `tokens` ones
// Grid: a workgroup for each request. CPU reference: src/cpu/top_logits.rs
#import TOKENS_PER_LANE = 32
#import WG = 256
#import scan = scan_tree
#import order_key
#import narrow
#import best
#import leading

const MAX_TOP: u32 = 20u;

// Asks are from `first` on, and write there.
struct TopLogitsParams { vocab: u32, parts: u32, stride: u32, first: u32, requests: u32 }

struct TopRequest { row: u32, tokens: u32 }

@group(0) @binding(0) var<uniform> params: TopLogitsParams;
@group(0) @binding(1) var<storage, read> logits: array<f32>;
@group(0) @binding(2) var<storage, read> requests: array<TopRequest>;
@group(0) @binding(3) var<storage, read> targets: array<u32>;
@group(0) @binding(4) var<storage, read> maxima: array<f32>;
@group(0) @binding(5) var<storage, read> values: array<vec4<f32>>;
@group(0) @binding(6) var<storage, read_write> ids: array<u32>;
@group(0) @binding(7) var<storage, read_write> log_probs: array<f32>;

// The likeliest tokens, in any order.
var<workgroup> listed: atomic<u32>;
var<workgroup> listed_keys: array<u32, MAX_TOP>;
var<workgroup> listed_ids: array<u32, MAX_TOP>;

@compute @workgroup_size(WG)
fn top_logits(@builtin(workgroup_id) group: vec3<u32>, lane: Lane) {
    let request = requests[params.first + group.x];
    let base = request.row * params.vocab;
    let at = (params.first + group.x) * params.stride;
    let place = place_of(lane);
    let top = largest_of(request.row);
    let normaliser = top + log(mass(request.row, top, place));
    if (place == 0u) {
        // A row without a number to draw by leaves no id of the vocabulary.
        let token = min(targets[request.row], params.vocab - 1u);
        ids[at] = token;
        log_probs[at] = logits[base + token] - normaliser;
    }
    let tokens = min(request.tokens, MAX_TOP);
    if (tokens == 0u) {
        return;
    }
    list(request.row, leading(request.row, 0u, order_key(top), tokens, lane), place);
    if (place < tokens) {
        let key = listed_keys[place];
        let id = listed_ids[place];
        var rank = 0u;
        for (var i = 0u; i < tokens; i++) {
            rank += u32(leads(Leading(key, id), listed_keys[i], listed_ids[i]));
        }
        ids[at + 1u + rank] = id;
        log_probs[at + 1u + rank] = logits[base + min(id, params.vocab - 1u)] - normaliser;
    }
}

fn largest_of(row: u32) -> f32 {
    var top = values[row * params.parts].x;
    for (var part = 1u; part < params.parts; part++) {
        top = max(top, values[row * params.parts + part].x);
    }
    return top;
}

// Relative to the largest.
fn mass(row: u32, top: f32, place: u32) -> f32 {
    var mass = 0.0;
    for (var id = place; id < params.vocab; id += WG) {
        mass += exp(logits[row * params.vocab + id] - top);
    }
    return sum_of_lanes(mass, place);
}

fn list(row: u32, leaders: Leading, place: u32) {
    if (place < MAX_TOP) {
        listed_keys[place] = 0u;
        listed_ids[place] = NO_ID - place;
    }
    if (place == 0u) {
        atomicStore(&listed, 0u);
    }
    workgroupBarrier();
    for (var block = place; block < params.parts * WG; block += WG) {
        if (order_key(maxima[row * params.parts * WG + block]) < leaders.edge) {
            continue;
        }
        var id = first_of(block);
        for (var i = 0u; i < TOKENS_PER_LANE && id < params.vocab; i++) {
            let key = order_key(logits[row * params.vocab + id]);
            if (leads(leaders, key, id)) {
                let slot = atomicAdd(&listed, 1u);
                if (slot < MAX_TOP) {
                    listed_keys[slot] = key;
                    listed_ids[slot] = id;
                }
            }
            id += WG;
        }
    }
    workgroupBarrier();
}
