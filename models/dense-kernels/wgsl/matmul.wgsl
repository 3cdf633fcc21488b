// y[m, n] = sum over k of x[m, k] * w[n, k], with quantised w dequantised in registers.
//   x  [rows, x_stride] f32, the first 32 * blocks of each row
//   w  by blocks of 32 along k: see the weights module
//   y  [rows, y_stride] f32, columns from y_offset on
// The rows module says which rows and which of several matrices a workgroup multiplies.
// A lane owns ROWS rows and PARTS * WIDE columns; all lanes of a workgroup need the same activations. Every sum has one
// order: within a block of 32 by k, then block by block. So a result depends on neither ROWS, WIDE nor SLICES: one row
// alone and one row among many agree to the bit.
// CPU reference: src/cpu/matmul.rs
#import ROWS = 1
#import WIDE = 1
#import PARTS = 1
#import COLS = 64
#import SLICES = 1
#import reduce = reduce_tree
#import weights = weights_q4
#import rows = rows_plain
#import activations = x_uniform
#import epilogue = epilogue_store
#import sums = sums_loops
#import matmul_params
// COLS lanes along columns times SLICES along k; block sums of slices meet in workgroup memory and are added in order.
const WG: u32 = COLS * SLICES;
// Operand of reductions: a value for each row.
const VALUES: u32 = ROWS;
// SLICES == 1 ? 1 : blocks * COLS * ROWS * WIDE * PARTS
override SUMS: u32 = 1u;

const COLS_PER_LANE: u32 = PARTS * WIDE;
const SUMS_A_LANE: u32 = ROWS * COLS_PER_LANE;
var<workgroup> sums: array<f32, SUMS>;

// Column c of a lane in wq and ws.
fn column(place: Place, first_col: u32, c: u32) -> u32 {
    return place.col + min(first_col + (c % WIDE) * COLS, params.cols - 1u) + (c / WIDE) * params.cols;
}

@compute @workgroup_size(WG)
fn matmul(@builtin(workgroup_id) group: vec3<u32>, lane: Lane) {
    let local_col = lane.index % COLS;
    let slice = lane.index / COLS;
    let first_col = group.x * COLS * WIDE + local_col;
    let place = place_of(group);
    if (place.first >= place.end) {
        return;
    }
    var acc: Sums;
    prepare(place, lane);
    // All lanes go round as often: activations may come through the subgroup, which asks for uniform control flow. One call for
    // any number of slices: drivers translate the function once for each.
    for (var first = 0u; first < params.blocks; first += SLICES) {
        let block = first + slice;
        var s = block_sums(min(block, params.blocks - 1u), first_col, place, lane.index);
        if (SLICES == 1u) {
            add(&acc, s);
        } else if (block < params.blocks) {
            for (var i = 0u; i < SUMS_A_LANE; i++) {
                sums[(block * SUMS_A_LANE + i) * COLS + local_col] = sum_at(&s, i % ROWS, i / ROWS);
            }
        }
    }
    if (SLICES > 1u) {
        workgroupBarrier();
        if (slice != 0u) {
            return;
        }
        for (var block = 0u; block < params.blocks; block++) {
            for (var i = 0u; i < SUMS_A_LANE; i++) {
                add_at(&acc, i % ROWS, i / ROWS, sums[(block * SUMS_A_LANE + i) * COLS + local_col]);
            }
        }
    }
    #unroll r < ROWS
        if (place.first + r < place.end) {
            let at = y_row(place, r) + params.y_offset;
            #unroll c < WIDE
                let col = first_col + c * COLS;
                if (col < params.cols) {
                    finish(at + col, sum_at(&acc, r, c), sum_at(&acc, r, (PARTS - 1u) * WIDE + c));
                }
            #end
        }
    #end
}
