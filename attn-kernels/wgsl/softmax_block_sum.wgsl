// Attention mass of blocks: the softmax of strided scores, summed over a query block's ROWS rows and a key block's columns.
//   parts  [num_heads, rows, part_stride] f32 of strided_qk, for the rows of this dispatch
//   sums   [num_heads, query blocks, sum_stride] f32, up to the last key block that a query block sees
// Rows without a real query count nothing: a query block adds up to the number of its real rows.
// Grid: (query blocks of the dispatch, num_heads). Bytes moved: 8 * rows * parts a head, and the sums.
// CPU reference: src/cpu/softmax_block_sum.rs
#import numbers
#import ROWS = 16
#import PART = 16
// Lanes of a workgroup, and of a row in the first phase.
#import WG = 256
#let LANES = WG / 8

struct SoftmaxBlockSumParams {
    rows: u32,
    part_stride: u32,
    sum_stride: u32,
    first_row: u32,
    real_first: u32, // grid rows that hold a real query
    real_end: u32,
    key_start: u32, // column of grid row 0
    columns: u32,
    causal: u32,
    num_heads: u32,
    query_blocks: u32,
}

@group(0) @binding(0) var<uniform> params: SoftmaxBlockSumParams;
@group(0) @binding(1) var<storage, read> parts: array<f32>;
@group(0) @binding(2) var<storage, read_write> sums: array<f32>;

const PARTS: u32 = ROWS / PART;

var<workgroup> tops: array<f32, WG>;
var<workgroup> totals: array<f32, WG>;
// log2 of the sum of 2^score over a row.
var<workgroup> row_lse: array<f32, ROWS>;

@compute @workgroup_size(WG)
fn softmax_block_sum(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let row0 = group.x * ROWS;
    let at = (group.y * params.rows + row0) * params.part_stride;
    for (var first = 0u; first < ROWS; first += WG / LANES) {
        let row = first + lane / LANES;
        var top = LOWEST;
        var total = 0.0;
        if (row < ROWS && is_real(row0 + row)) {
            for (var p = lane % LANES; p < seen_parts(row0 + row); p += LANES) {
                let x = parts[at + row * params.part_stride + p];
                let grown = max(top, x);
                total = total * exp2(top - grown) + exp2(x - grown);
                top = grown;
            }
        }
        tops[lane] = top;
        totals[lane] = total;
        workgroupBarrier();
        if (row < ROWS && lane % LANES == 0u) {
            for (var i = 1u; i < LANES; i++) {
                top = max(top, tops[lane + i]);
            }
            total = 0.0;
            for (var i = 0u; i < LANES; i++) {
                total += totals[lane + i] * exp2(tops[lane + i] - top);
            }
            row_lse[row] = top + log2(total);
        }
        workgroupBarrier();
    }
    let blocks = (seen_parts(row0 + ROWS - 1u) + PARTS - 1u) / PARTS;
    for (var block = lane; block < blocks; block += WG) {
        var sum = 0.0;
        for (var row = 0u; row < ROWS; row++) {
            if (is_real(row0 + row)) {
                let end = min((block + 1u) * PARTS, seen_parts(row0 + row));
                for (var p = block * PARTS; p < end; p++) {
                    sum += exp2(parts[at + row * params.part_stride + p] - row_lse[row]);
                }
            }
        }
        sums[(group.y * groups.x + group.x) * params.sum_stride + block] = sum;
    }
}

fn is_real(row: u32) -> bool {
    let in_grid = params.first_row + row;
    return in_grid >= params.real_first && in_grid < params.real_end;
}

// Parts with a column that the row sees.
fn seen_parts(row: u32) -> u32 {
    let own = params.key_start + params.first_row + row;
    let seen = select(params.columns, min(params.columns, own + 1u), params.causal == 1u);
    return (seen + PART - 1u) / PART;
}
