// Reads rows of logits once, with many workgroups, so that `sample` and `top_logits`, a workgroup a row, need to look only
// where large ones are.
//   logits [.., vocab] f32;  specs [rows] Spec, read with draws = 1 only
//   maxima [rows, parts * WG] f32: the largest logit of each block
//   values [rows, parts] (largest logit, score of the candidate, mass, 0);  ids [rows, parts] (largest logit's, candidate's)
// A row with a logit that is not finite has plus infinity as its largest; minus infinity is as good as a number where it
// stands for forbidden tokens.
// A part is TOKENS_PER_LANE * WG tokens in a row; a block is those of a part that one lane reads, WG apart. A part without
// tokens above minus infinity has no candidate. Candidates and masses are those of temperature alone, relative to the part's
// largest logit, where no filter but top-p comes first. Grid: (parts, rows). CPU reference: src/cpu/scan_logits.rs
#import TOKENS_PER_LANE = 32
#import WG = 256
#import best
#import noise

struct ScanLogitsParams { rows: u32, vocab: u32, parts: u32, draws: u32, neg_inf: f32 }

@group(0) @binding(0) var<uniform> params: ScanLogitsParams;
@group(0) @binding(1) var<storage, read> logits: array<f32>;
@group(0) @binding(2) var<storage, read> specs: array<Spec>;
@group(0) @binding(3) var<storage, read_write> maxima: array<f32>;
@group(0) @binding(4) var<storage, read_write> values: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read_write> ids: array<vec2<u32>>;

// All ones in infinities and in what is no number.
const EXPONENT: u32 = 0x7f800000u;

@compute @workgroup_size(WG)
fn scan_logits(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let base = group.y * params.vocab;
    let first = group.x * TOKENS_PER_LANE * WG + lane;
    let end = min(first + TOKENS_PER_LANE * WG, params.vocab);
    let part = group.y * params.parts + group.x;
    // The bits of an infinity that is allowed; 0 is a number. Where nothing is drawn, the row itself says what is what.
    var forbidden = bitcast<u32>(params.neg_inf);
    if (params.draws == 1u) {
        forbidden = select(0u, forbidden, specs[group.y].masked == 1u);
    }
    var own = Best(params.neg_inf, select(NO_ID, first, first < end));
    for (var id = first; id < end; id += WG) {
        let logit = logits[base + id];
        let bits = bitcast<u32>(logit);
        let is_bad = (bits & EXPONENT) == EXPONENT && bits != forbidden;
        take(&own, select(logit, -params.neg_inf, is_bad), id);
    }
    maxima[part * WG + lane] = own.value;
    let top = best_of_lanes(own, lane);
    var candidate = Best(params.neg_inf, NO_ID);
    var mass = 0.0;
    if (params.draws == 1u && top.value > params.neg_inf && top.value < -params.neg_inf) {
        let spec = specs[group.y];
        if (spec.temperature > 0.0 && takes_all(spec)) {
            var scored = Best(params.neg_inf, NO_ID);
            for (var id = first; id < end; id += WG) {
                let scaled = (logits[base + id] - top.value) / spec.temperature;
                take(&scored, scaled + gumbel(spec, id), id);
                mass += exp(scaled);
            }
            candidate = best_of_lanes(scored, lane);
            mass = sum_of_lanes(mass, lane);
        }
    }
    if (lane == 0u) {
        values[part] = vec4(top.value, candidate.value, mass, 0.0);
        ids[part] = vec2(top.id, candidate.id);
    }
}
