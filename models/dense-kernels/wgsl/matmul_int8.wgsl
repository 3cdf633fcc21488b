// matmul with activations in codes of 8 bits, for few rows: y[m, n] = sum over k of x[m, k] * w[n, k].
//   x, scales: see quantize_rows.wgsl;  w by blocks of 32 along k: see the weights module;  y [rows, y_stride] f32
// A lane owns ROWS rows and WIDE columns of each part, and every SLICES-th block along k. Products within a block are sums of
// integers; a slice adds its blocks in order, and slices are added in order. A result depends on SLICES, but neither on
// ROWS nor on WIDE: one row alone and one row among many agree to the bit, here and in matmul_int8_tile.
// Bytes moved: the weights once a tile of ROWS rows, and 1.25 an activation for each workgroup along columns.
// Grid: (column tiles, row tiles). CPU reference: src/cpu/matmul_int8.rs
#import ROWS = 1
#import PARTS = 1
#import WIDE = 1
// Lanes along columns and along k.
#import COLS = 8
#import SLICES = 64
// Blocks of a column that are on their way at a time.
#import BATCH = 2
#import COLS_PER_LANE = 1
#import SUMS = 1
#import weights = weights_q4k
#import epilogue = epilogue_store
#import int8_params
#import add_block

const WG: u32 = COLS * SLICES;
const_assert COLS_PER_LANE == WIDE * PARTS && SUMS == COLS_PER_LANE * ROWS;

var<workgroup> sums: array<f32, WG * COLS_PER_LANE>;

@compute @workgroup_size(WG)
fn matmul_int8(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let local_col = lane % COLS;
    let slice = lane / COLS;
    let col0 = group.x * COLS * WIDE + local_col;
    let row0 = group.y * ROWS;
    var acc: array<f32, SUMS>;
    for (var first = slice; first < params.blocks; first += SLICES * BATCH) {
        var w: array<Block, BATCH * COLS_PER_LANE>;
        #unroll i < BATCH
            #unroll c < COLS_PER_LANE
                let col = min(col0 + c % WIDE * COLS, params.cols - 1u) + c / WIDE * params.cols;
                let block = min(first + i * SLICES, params.blocks - 1u);
                w[i * COLS_PER_LANE + c] = load_block(block, col, params.cols * PARTS, params.blocks);
            #end
        #end
        #unroll i < BATCH
            let block = first + i * SLICES;
            if (block < params.blocks) {
                #unroll r < ROWS
                    let at = min(row0 + r, params.rows - 1u) * params.blocks + block;
                    let low = x[at * 2u];
                    let high = x[at * 2u + 1u];
                    let d = scales[at];
                    #unroll c < COLS_PER_LANE
                        let at_sum = r * COLS_PER_LANE + c;
                        acc[at_sum] = add_block(acc[at_sum], w[i * COLS_PER_LANE + c], low, high, d);
                    #end
                #end
            }
        #end
    }
    #unroll r < ROWS
        if (r > 0u) {
            workgroupBarrier();
        }
        #unroll c < COLS_PER_LANE
            sums[(slice * COLS_PER_LANE + c) * COLS + local_col] = acc[r * COLS_PER_LANE + c];
        #end
        workgroupBarrier();
        if (lane < COLS * WIDE) {
            var total: array<f32, PARTS>;
            #unroll p < PARTS
                for (var s = 0u; s < SLICES; s++) {
                    total[p] += sums[(s * COLS_PER_LANE + p * WIDE) * COLS + lane];
                }
            #end
            let col = group.x * COLS * WIDE + lane;
            if (col < params.cols && row0 + r < params.rows) {
                finish((row0 + r) * params.y_stride + params.y_offset + col, total[0], total[PARTS - 1u]);
            }
        }
    #end
}
