// Collapses the residual streams of a row into what a block reads (manifold-constrained hyper-connections), a workgroup a row.
//   mixes    [rows, PARTS] f32, streams [rows, STREAMS, width] through the projection, without their norm
//   affine   base of each mix, then a factor for each part: pre, post, comb; with HEAD = 1 pre alone
//   out      [rows, width] streams weighed by pre = sigmoid + eps
//   gates    [rows, STREAMS + STREAMS * STREAMS]: post = 2 sigmoid, then comb[from, to], doubly stochastic (Sinkhorn-Knopp)
//   block    [rows, width] zeroed, for the block to add to; neither gates nor block with HEAD = 1
// CPU reference: src/cpu/hyper_collapse.rs
#import STREAMS = 4
#import HEAD = 0
#import WG = 64
#import reduce = reduce_tree
#import inverse_root

const VALUES: u32 = 1u;
const PARTS: u32 = STREAMS + (1u - HEAD) * STREAMS * (1u + STREAMS);

struct HyperCollapseParams {
    rows: u32,
    width: u32,
    rounds: u32, // of rows and columns
    norm_eps: f32,
    eps: f32,
}

@group(0) @binding(0) var<uniform> params: HyperCollapseParams;
@group(0) @binding(1) var<storage, read> mixes: array<f32>;
@group(0) @binding(2) var<storage, read> streams: array<f32>;
@group(0) @binding(3) var<storage, read> affine: array<f32>;
@group(0) @binding(4) var<storage, read_write> out: array<f32>;
@group(0) @binding(5) var<storage, read_write> gates: array<f32>;
@group(0) @binding(6) var<storage, read_write> block: array<f32>;

var<workgroup> mixed: array<f32, PARTS>;
var<workgroup> comb: array<f32, STREAMS * STREAMS>;

@compute @workgroup_size(WG)
fn hyper_collapse(@builtin(workgroup_id) group: vec3<u32>, lane: Lane) {
    let row = group.y * 65535u + group.x;
    if (row >= params.rows) {
        return;
    }
    let first = row * STREAMS * params.width;
    var square = 0.0;
    for (var i = lane.index; i < STREAMS * params.width; i += WG) {
        square = fma(streams[first + i], streams[first + i], square);
    }
    let mean = reduce_add(Values(square), lane)[0] / f32(STREAMS * params.width);
    let norm = inverse_root(mean + params.norm_eps);
    for (var i = lane.index; i < PARTS; i += WG) {
        let part = min(i / STREAMS, 2u);
        mixed[i] = mixes[row * PARTS + i] * norm * affine[PARTS + part] + affine[i];
    }
    workgroupBarrier();
    for (var d = lane.index; d < params.width; d += WG) {
        var sum = 0.0;
        for (var s = 0u; s < STREAMS; s++) {
            sum = fma(sigmoid(mixed[s]) + params.eps, streams[first + s * params.width + d], sum);
        }
        out[row * params.width + d] = sum;
        if (HEAD == 0u) {
            block[row * params.width + d] = 0.0;
        }
    }
    if (HEAD == 0u) {
        leave_gates(row, lane.index);
    }
}

fn sigmoid(x: f32) -> f32 {
    return 1.0 / (1.0 + exp(-x));
}

// A lane owns a row of the matrix, then a column.
fn leave_gates(row: u32, lane: u32) {
    let at = row * STREAMS * (1u + STREAMS);
    for (var s = lane; s < STREAMS; s += WG) {
        gates[at + s] = 2.0 * sigmoid(mixed[STREAMS + s]);
        soften(s);
    }
    workgroupBarrier();
    for (var round = 0u; round < params.rounds; round++) {
        for (var s = lane; s < STREAMS && round > 0u; s += WG) {
            divide(s * STREAMS, 1u);
        }
        workgroupBarrier();
        for (var s = lane; s < STREAMS; s += WG) {
            divide(s, STREAMS);
        }
        workgroupBarrier();
    }
    for (var i = lane; i < STREAMS * STREAMS; i += WG) {
        gates[at + STREAMS + i] = comb[i];
    }
}

// Row `s` of the matrix: a softmax, kept away from 0.
fn soften(s: u32) {
    let logits = 2u * STREAMS + s * STREAMS;
    var top = mixed[logits];
    for (var i = 1u; i < STREAMS; i++) {
        top = max(top, mixed[logits + i]);
    }
    var sum = 0.0;
    for (var i = 0u; i < STREAMS; i++) {
        let weight = exp(mixed[logits + i] - top);
        comb[s * STREAMS + i] = weight;
        sum += weight;
    }
    for (var i = 0u; i < STREAMS; i++) {
        comb[s * STREAMS + i] = comb[s * STREAMS + i] / sum + params.eps;
    }
}

// Divides a row or column by its sum.
fn divide(first: u32, step: u32) {
    var sum = params.eps;
    for (var i = 0u; i < STREAMS; i++) {
        sum += comb[first + i * step];
    }
    for (var i = 0u; i < STREAMS; i++) {
        comb[first + i * step] /= sum;
    }
}
