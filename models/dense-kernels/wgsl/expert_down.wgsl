// Second half of the experts of few rows: y[row] += sum over its TOP experts of factor * (product + bias).
//   x [rows, TOP, blocks, 8] u32, scales [rows, TOP, blocks] vec2<f32>: codes of expert_gate_up
//   wq, ws: weights [matrices, width] by blocks of 32 along k: see the weights module
//   experts, factors [rows, TOP];  biases [*, width], read with BIASED = 1 only;  y [rows, width] f32
// A lane owns a column, and every SLICES-th block of all experts of the row one after the other; a slice adds its blocks in
// order, and slices are added in order. What a row gets depends on no other row. Experts before first_matrix, or after the last
// of this dispatch, add nothing.
// Bytes moved: the columns of TOP matrices and 1.25 an activation of the row's pairs a workgroup. Grid: (width / COLS, rows).
// CPU reference: src/cpu/expert_down.rs
#import TOP = 2
#import BIASED = 0
// Lanes along columns and along k, and blocks of a column that are on their way at a time.
#import COLS = 8
#import SLICES = 32
#import BATCH = 4
#import weights = weights_q4k
#import add_block

const WG: u32 = COLS * SLICES;

struct ExpertDownParams {
    rows: u32,
    width: u32,
    blocks: u32, // along k
    matrices: u32, // of this dispatch
    first_matrix: u32,
}

@group(0) @binding(0) var<uniform> params: ExpertDownParams;
@group(0) @binding(1) var<storage, read> x: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> scales: array<vec2<f32>>;
const WQ: u32 = 3u;
const WS: u32 = 4u;
#import planes = planes_buffers
@group(0) @binding(5) var<storage, read> experts: array<u32>;
@group(0) @binding(6) var<storage, read> factors: array<f32>;
@group(0) @binding(7) var<storage, read> biases: array<f32>;
@group(0) @binding(8) var<storage, read_write> y: array<f32>;

// The row's experts by their matrices in this dispatch, not below params.matrices if it does not serve them.
var<workgroup> matrices: array<u32, TOP>;
var<workgroup> sums: array<f32, WG>;

@compute @workgroup_size(WG)
fn expert_down(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = group.y;
    for (var k = lane; k < TOP; k += WG) {
        matrices[k] = experts[row * TOP + k] - params.first_matrix;
    }
    workgroupBarrier();
    let col = group.x * COLS + lane % COLS;
    let slice = lane / COLS;
    let read_col = min(col, params.width - 1u);
    let all_cols = params.matrices * params.width;
    let steps = TOP * params.blocks;
    var acc = 0.0;
    for (var first = slice; first < steps; first += SLICES * BATCH) {
        var w: array<Block, BATCH>;
        #unroll i < BATCH
            let step = min(first + i * SLICES, steps - 1u);
            let matrix = min(matrices[step / params.blocks], params.matrices - 1u);
            w[i] = load_block(step % params.blocks, matrix * params.width + read_col, all_cols, params.blocks);
        #end
        #unroll i < BATCH
            let step = first + i * SLICES;
            let k = min(step / params.blocks, TOP - 1u);
            if (step < steps && matrices[k] < params.matrices) {
                let at = row * steps + step;
                let d = factors[row * TOP + k] * scales[at];
                acc = add_block(acc, w[i], x[at * 2u], x[at * 2u + 1u], d);
            }
        #end
    }
    sums[lane] = acc;
    workgroupBarrier();
    if (lane >= COLS || col >= params.width) {
        return;
    }
    var total = 0.0;
    for (var s = 0u; s < SLICES; s++) {
        total += sums[s * COLS + lane];
    }
    if (BIASED == 1u) {
        for (var k = 0u; k < TOP; k++) {
            if (matrices[k] < params.matrices) {
                let bias = biases[(params.first_matrix + matrices[k]) * params.width + col];
                total = fma(factors[row * TOP + k], bias, total);
            }
        }
    }
    y[row * params.width + col] += total;
}
