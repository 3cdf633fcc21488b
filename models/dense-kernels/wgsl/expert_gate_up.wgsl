// First half of the experts of few rows: activation(gate) * up of every pair of a row and an expert, as codes of 8 bits.
//   x [rows, blocks, 8] u32, scales [rows, blocks] vec2<f32>: codes of rows, see quantize_rows.wgsl
//   wq, ws: weights [matrices, 2, inner] by blocks of 32 along k, gates then ups: see the weights module
//   experts [pairs], TOP a row;  biases [*, 2, inner], read with BIASED = 1 only
//   codes_out [pairs, inner / 32, 8] u32, scales_out [pairs, inner / 32] vec2<f32>: the results as quantize_rows writes them
// KIND: see the gated module.
// A workgroup makes the 32 elements of one block of one pair, so that it has what the block's scale needs. Lanes own a column of
// both parts and every SLICES-th block along k; a slice adds its blocks in order, and slices are added in order. What is made of
// a row depends on no other row. Pairs of experts before first_matrix, or after the last of this dispatch, are left.
// Bytes moved: two matrices' columns and 1.25 an activation of the row a workgroup. Grid: (inner / 32, pairs).
// CPU reference: src/cpu/expert_gate_up.rs
#import TOP = 2
#import KIND = 0
#import BIASED = 0
// Lanes along k, and blocks of a column that are on their way at a time.
#import SLICES = 8
#import BATCH = 4
#import weights = weights_q4k
#import gated
#import add_block
#import code_scale

const COLS: u32 = 32u;
const WG: u32 = COLS * SLICES;

struct ExpertGateUpParams {
    pairs: u32,
    inner: u32, // a multiple of 32
    blocks: u32, // along k
    matrices: u32, // of this dispatch
    first_matrix: u32,
    alpha: f32,
    limit: f32,
}

@group(0) @binding(0) var<uniform> params: ExpertGateUpParams;
@group(0) @binding(1) var<storage, read> x: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> scales: array<vec2<f32>>;
const WQ: u32 = 3u;
const WS: u32 = 4u;
#import planes = planes_buffers
@group(0) @binding(5) var<storage, read> experts: array<u32>;
@group(0) @binding(6) var<storage, read> biases: array<f32>;
@group(0) @binding(7) var<storage, read_write> codes_out: array<u32>;
@group(0) @binding(8) var<storage, read_write> scales_out: array<vec2<f32>>;

// Gate and up of each slice and column.
var<workgroup> sums: array<vec2<f32>, WG>;
var<workgroup> made: array<f32, COLS>;

@compute @workgroup_size(WG)
fn expert_gate_up(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let pair = group.y;
    let expert = experts[pair];
    let matrix = expert - params.first_matrix;
    if (matrix >= params.matrices) {
        return;
    }
    let local_col = lane % COLS;
    let slice = lane / COLS;
    let col = group.x * COLS + local_col;
    let all_cols = params.matrices * 2u * params.inner;
    let gate_col = matrix * 2u * params.inner + col;
    let row = pair / TOP * params.blocks;
    var acc: array<f32, 2>;
    for (var first = slice; first < params.blocks; first += SLICES * BATCH) {
        var w: array<Block, 2u * BATCH>;
        #unroll i < BATCH
            let block = min(first + i * SLICES, params.blocks - 1u);
            #unroll part < 2
                w[2u * i + part] = load_block(block, gate_col + part * params.inner, all_cols, params.blocks);
            #end
        #end
        #unroll i < BATCH
            let block = first + i * SLICES;
            if (block < params.blocks) {
                let low = x[(row + block) * 2u];
                let high = x[(row + block) * 2u + 1u];
                let d = scales[row + block];
                #unroll part < 2
                    acc[part] = add_block(acc[part], w[2u * i + part], low, high, d);
                #end
            }
        #end
    }
    sums[lane] = vec2(acc[0], acc[1]);
    workgroupBarrier();
    if (lane < COLS) {
        var total = vec2<f32>();
        for (var s = 0u; s < SLICES; s++) {
            total += sums[s * COLS + lane];
        }
        if (BIASED == 1u) {
            let at = expert * 2u * params.inner + col;
            total += vec2(biases[at], biases[at + params.inner]);
        }
        made[lane] = gated(total.x, total.y, params.alpha, params.limit);
    }
    workgroupBarrier();
    if (lane < COLS / 4u) {
        write_codes(pair * (params.inner / COLS) + group.x, lane);
    }
}

// Writes a quad of the codes of block `at`, and the first lane its scale.
fn write_codes(at: u32, quad: u32) {
    var largest = 0.0;
    var all_finite = true;
    for (var i = 0u; i < COLS; i++) {
        let size = abs(made[i]);
        all_finite = all_finite && size <= LARGEST;
        largest = max(largest, size);
    }
    let inverse = codes_a_unit(largest);
    var sum = 0;
    for (var i = 0u; i < COLS; i++) {
        sum += i32(round(made[i] * inverse));
    }
    let first = 4u * quad;
    let v = vec4(made[first], made[first + 1u], made[first + 2u], made[first + 3u]);
    codes_out[at * 8u + quad] = pack4xI8(vec4<i32>(round(v * inverse)));
    if (quad == 0u) {
        scales_out[at] = code_scale(largest, all_finite, sum);
    }
}
