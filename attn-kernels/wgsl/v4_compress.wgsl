// Entries of DeepSeek-V4's compressed caches: a softmax-weighted sum over a window of tokens, normed and rotated.
//   states   f32, blocks of state_block tokens [2, COFF * DIM], `page` from block to block: values, then scores without the
//            positional embedding
//   ape      [ratio, COFF * DIM] f32, added to the score of the token at position p as ape[p % ratio]
//   norm     [DIM] f32 weight of the RMS norm
//   entries  [n] vec4<u32>: position that completes the entry, first entry of its state table, slot in out, 0
//   tables   blocks of the state cache
//   angles    [n, ROPE / 2] (cos, sin) at the entry's position
//   out      [slots, DIM] f32
// An entry is made of COFF * ratio tokens; with COFF = 2 the first half of them gives its first half of the state. The last
// ROPE channels are rotated, pairs of neighbours. Grid: (n).
// Bytes moved: 8 * COFF * ratio * DIM an entry. CPU reference: src/cpu/v4_compress.rs
#import DIM = 512
#import COFF = 2
#import ROPE = 64
#import inverse_root

struct V4CompressParams { ratio: u32, state_block: u32, page: u32, eps: f32, entries: u32 }

@group(0) @binding(0) var<uniform> params: V4CompressParams;
@group(0) @binding(1) var<storage, read> states: array<f32>;
@group(0) @binding(2) var<storage, read> ape: array<f32>;
@group(0) @binding(3) var<storage, read> norm: array<f32>;
@group(0) @binding(4) var<storage, read> entries: array<vec4<u32>>;
@group(0) @binding(5) var<storage, read> tables: array<u32>;
@group(0) @binding(6) var<storage, read> angles: array<vec2<f32>>;
@group(0) @binding(7) var<storage, read_write> out: array<f32>;

const WG: u32 = 128u;

var<workgroup> pooled: array<f32, DIM>;
var<workgroup> squares: array<f32, WG>;

@compute @workgroup_size(WG)
fn v4_compress(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let entry = entries[group.x];
    var square = 0.0;
    for (var d = lane; d < DIM; d += WG) {
        let x = pool(entry, d);
        pooled[d] = x;
        square = fma(x, x, square);
    }
    squares[lane] = square;
    for (var half = WG / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (lane < half) {
            squares[lane] += squares[lane + half];
        }
    }
    workgroupBarrier();
    let scale = inverse_root(squares[0] / f32(DIM) + params.eps);
    for (var pair = lane; pair < DIM / 2u; pair += WG) {
        var x = vec2(pooled[pair * 2u] * norm[pair * 2u], pooled[pair * 2u + 1u] * norm[pair * 2u + 1u]) * scale;
        if (pair >= (DIM - ROPE) / 2u) {
            let angle = angles[group.x * (ROPE / 2u) + pair - (DIM - ROPE) / 2u];
            x = vec2(x.x * angle.x - x.y * angle.y, x.x * angle.y + x.y * angle.x);
        }
        out[entry.z * DIM + pair * 2u] = x.x;
        out[entry.z * DIM + pair * 2u + 1u] = x.y;
    }
}

// Channel d, over the tokens up to the entry's position, by online softmax.
fn pool(entry: vec4<u32>, d: u32) -> f32 {
    let end = entry.x + 1u;
    let window = min(COFF * params.ratio, end);
    var top = 0.0;
    var weights = 0.0;
    var sum = 0.0;
    for (var p = end - window; p < end; p++) {
        let part = select(0u, DIM, COFF == 2u && p + params.ratio >= end);
        let block = tables[entry.y + p / params.state_block];
        let at = block * params.page + p % params.state_block * 2u * COFF * DIM + part + d;
        let s = states[at + COFF * DIM] + ape[p % params.ratio * COFF * DIM + part + d];
        let grown = select(max(top, s), s, weights == 0.0);
        let shrink = select(exp(top - grown), 0.0, weights == 0.0);
        let weight = exp(s - grown);
        weights = fma(weights, shrink, weight);
        sum = fma(sum, shrink, weight * states[at]);
        top = grown;
    }
    return sum / weights;
}
