// Chooses TOP of EXPERTS experts for every row, and their weights, a workgroup a row. Ties go to the lower index, NaN
// counts as -inf: every row gets TOP different experts, whatever its logits are.
//   logits [rows, EXPERTS] f32, to which bias [EXPERTS] is added with BIASED = 1
//   correction [EXPERTS] f32, added to scores for the choice alone
//   tokens [rows];  table [*, TOP] experts of each token, with HASHED = 1: then scores only weigh
//   experts [rows, TOP] u32;  weights [rows, TOP] f32
// SCORE: 0 softmax of all, 1 softmax of the chosen, 2 sigmoid, 3 square root of softplus. With GROUPS > 1 the choice is
// among the TOP_GROUPS groups with the largest sums of their GROUP_TOP best, one or two.
// CPU reference: src/cpu/moe_route.rs
#import numbers
#import order_key
#import EXPERTS = 8
#import TOP = 2
#import GROUPS = 1
#import TOP_GROUPS = 1
#import GROUP_TOP = 2
#import SCORE = 0
#import HASHED = 0
#import NORMALISE = 0
#import BIASED = 0

#import WG = 64
#import reduce = reduce_tree

const VALUES: u32 = 1u;
const MEMBERS: u32 = EXPERTS / GROUPS;

struct MoeRouteParams { rows: u32, scale: f32 }

@group(0) @binding(0) var<uniform> params: MoeRouteParams;
@group(0) @binding(1) var<storage, read> logits: array<f32>;
@group(0) @binding(2) var<storage, read> correction: array<f32>;
@group(0) @binding(3) var<storage, read> tokens: array<u32>;
@group(0) @binding(4) var<storage, read> table: array<u32>;
@group(0) @binding(5) var<storage, read_write> experts: array<u32>;
@group(0) @binding(6) var<storage, read_write> weights: array<f32>;
@group(0) @binding(7) var<storage, read> bias: array<f32>;

var<workgroup> scores: array<f32, EXPERTS>;
var<workgroup> choice: array<f32, EXPERTS>;
// Ranks of experts and groups as integers, which are in order even where the floats are not.
var<workgroup> keys: array<u32, EXPERTS>;
var<workgroup> groups: array<u32, GROUPS>;
var<workgroup> picked: array<u32, TOP>;

@compute @workgroup_size(WG)
fn moe_route(@builtin(workgroup_id) group: vec3<u32>, within: Lane) {
    let lane = within.index;
    let row = group.y * 65535u + group.x;
    if (row >= params.rows) {
        return;
    }
    for (var e = lane; e < EXPERTS; e += WG) {
        var logit = logits[row * EXPERTS + e];
        if (BIASED == 1u) {
            logit += bias[e];
        }
        choice[e] = logit;
    }
    workgroupBarrier();
    var top = LOWEST;
    var sum = 0.0;
    if (SCORE == 0u) {
        for (var e = lane; e < EXPERTS; e += WG) {
            top = max(top, choice[e]);
        }
        top = reduce_max(Values(top), within)[0];
        for (var e = lane; e < EXPERTS; e += WG) {
            sum += exp(choice[e] - top);
        }
        sum = reduce_add(Values(sum), within)[0];
    }
    for (var e = lane; e < EXPERTS; e += WG) {
        scores[e] = score(choice[e], top, sum);
        choice[e] = scores[e] + correction[e];
        keys[e] = order_key(choice[e]);
    }
    workgroupBarrier();
    if (GROUPS > 1u) {
        keep_groups(lane);
    }
    choose(row, lane);
    workgroupBarrier();
    weigh(row, lane);
}

fn score(logit: f32, top: f32, sum: f32) -> f32 {
    if (SCORE == 0u) {
        return exp(logit - top) / sum;
    }
    if (SCORE == 2u) {
        return 1.0 / (1.0 + exp(-logit));
    }
    if (SCORE == 3u) {
        return sqrt(max(logit, 0.0) + log(1.0 + exp(-abs(logit))));
    }
    return logit;
}

// Takes the experts outside the best groups out of the choice.
fn keep_groups(lane: u32) {
    for (var g = lane; g < GROUPS; g += WG) {
        var best = LOWEST;
        var second = LOWEST;
        for (var e = g * MEMBERS; e < (g + 1u) * MEMBERS; e++) {
            second = max(second, min(best, choice[e]));
            best = max(best, choice[e]);
        }
        groups[g] = order_key(select(best + second, best, MEMBERS == 1u || GROUP_TOP == 1u));
    }
    workgroupBarrier();
    for (var e = lane; e < EXPERTS; e += WG) {
        let mine = e / MEMBERS;
        var better = 0u;
        for (var g = 0u; g < GROUPS; g++) {
            better += u32(groups[g] > groups[mine] || (groups[g] == groups[mine] && g < mine));
        }
        if (better >= TOP_GROUPS) {
            keys[e] = 0u; // below the key of -inf
        }
    }
    workgroupBarrier();
}

fn choose(row: u32, lane: u32) {
    if (HASHED == 1u) {
        for (var k = lane; k < TOP; k += WG) {
            picked[k] = min(table[tokens[row] * TOP + k], EXPERTS - 1u);
        }
        return;
    }
    for (var e = lane; e < EXPERTS; e += WG) {
        // The first of equal keys is better. The largest number is no key.
        let mine = keys[e];
        var better = 0u;
        for (var other = 0u; other < EXPERTS; other++) {
            better += u32(keys[other] >= mine + u32(other >= e));
        }
        if (better < TOP) {
            picked[better] = e;
        }
    }
}

// Each of TOP lanes adds all weights up, and writes one.
fn weigh(row: u32, lane: u32) {
    var top = LOWEST;
    if (SCORE == 1u) {
        for (var k = 0u; k < TOP; k++) {
            top = max(top, scores[picked[k]]);
        }
    }
    var sum = 0.0;
    for (var k = 0u; k < TOP; k++) {
        sum += weight_of(k, top);
    }
    for (var k = lane; k < TOP; k += WG) {
        let w = weight_of(k, top);
        experts[row * TOP + k] = picked[k];
        weights[row * TOP + k] = select(w, w / (sum + 1e-20), NORMALISE == 1u || SCORE == 1u) * params.scale;
    }
}

fn weight_of(k: u32, top: f32) -> f32 {
    let w = scores[picked[k]];
    return select(w, exp(w - top), SCORE == 1u);
}
