// matmul for many rows, where neither cooperative matrices nor codes of 8 bits serve: bindings, parameters, rows, epilogues and
// the order of every sum are those of matmul, so that results agree to the bit.
// A workgroup owns ROWS rows and COLS columns of each part, a lane TALL of the rows and WIDE of the columns (of all parts).
// Half a block of k is in workgroup memory, the next half of activations and the next block of weights on their way to registers.
// Bytes moved: the weights once for ROWS rows, 4 an activation for COLS columns.
// Grid: (column tiles, row tiles), of several matrices as the rows module says. CPU reference: src/cpu/matmul.rs
#import TALL = 8
#import WIDE = 8
// Lanes along rows and along columns.
#import ROW_LANES = 8
#import COL_LANES = 16
#import PARTS = 1
#import SUMS = 64
// Quads of activations, and of weights, that a lane stages.
#import X_LOADS = 2
#import W_QUADS = 4
#import weights = weights_q4
#import rows = rows_plain
#import epilogue = epilogue_store
// Turns of the loops over the halves of a block and over k.
#import steps = trips_known
#import matmul_params
#import tile_places
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;

const WG: u32 = ROW_LANES * COL_LANES;
const ROWS: u32 = TALL * ROW_LANES;
const ALL_COLS: u32 = WIDE * COL_LANES;
const COLS: u32 = ALL_COLS / PARTS;
const_assert SUMS == TALL * WIDE && TALL % 4u == 0u && WIDE % (RUN * PARTS) == 0u;
// Elements and quads of k in workgroup memory at a time.
const STEP: u32 = 16u;
const QUADS: u32 = STEP / 4u;
const_assert X_LOADS * WG == ROWS * QUADS && W_QUADS * WG == ALL_COLS * QUADS && WG % ROWS == 0u && WG % ALL_COLS == 0u;

var<workgroup> a_tile: array<f32, STEP * ROWS>;
var<workgroup> b_tile: array<f32, STEP * ALL_COLS>;

@compute @workgroup_size(WG)
fn matmul_tile(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let place = place_of(group);
    if (place.first >= place.end) {
        return;
    }
    let col0 = group.x * COLS;
    let row_lane = lane / COL_LANES;
    let col_lane = lane % COL_LANES;
    // A lane stages quads of one row and of one column.
    let x_quad = lane / ROWS;
    let x_at = x_row(place, lane % ROWS) / 4u + x_quad;
    let w_col = lane % ALL_COLS;
    let w_quad = lane / ALL_COLS * W_QUADS;
    let col = place.col + min(col0 + w_col % COLS, params.cols - 1u) + w_col / COLS * params.cols;

    var acc: array<f32, SUMS>;
    var x_next: array<vec4<f32>, X_LOADS>;
    for (var i = 0u; i < X_LOADS; i++) {
        x_next[i] = x[x_at + i * (WG / ROWS)];
    }
    var w_next = load_block(0u, col, all_cols(), params.blocks);
    for (var block = 0u; block < params.blocks; block++) {
        let w = w_next;
        let next_block = min(block + 1u, params.blocks - 1u);
        w_next = load_block(next_block, col, all_cols(), params.blocks);
        var sums = array<f32, SUMS>();
        for (var half = 0u; half < trips(2u, params.blocks); half++) {
            for (var i = 0u; i < X_LOADS; i++) {
                for (var j = 0u; j < 4u; j++) {
                    a_tile[((x_quad + i * (WG / ROWS)) * 4u + j) * ROWS + lane % ROWS] = x_next[i][j];
                }
            }
            for (var i = 0u; i < W_QUADS; i++) {
                let values = quad(w, half * QUADS + w_quad + i);
                for (var j = 0u; j < 4u; j++) {
                    b_tile[((w_quad + i) * 4u + j) * ALL_COLS + w_col] = values[j];
                }
            }
            workgroupBarrier();
            let next = select(block * 2u + 1u, next_block * 2u, half == 1u) * QUADS;
            for (var i = 0u; i < X_LOADS; i++) {
                x_next[i] = x[x_at + next + i * (WG / ROWS)];
            }
            for (var k = 0u; k < trips(STEP, params.blocks); k++) {
                var a: array<f32, TALL>;
                var b: array<f32, WIDE>;
                for (var i = 0u; i < TALL; i++) {
                    a[i] = a_tile[k * ROWS + a_place(i, row_lane)];
                }
                for (var j = 0u; j < WIDE; j++) {
                    b[j] = b_tile[k * ALL_COLS + b_place(j, col_lane)];
                }
                for (var i = 0u; i < TALL; i++) {
                    for (var j = 0u; j < WIDE; j++) {
                        sums[i * WIDE + j] = fma(b[j], a[i], sums[i * WIDE + j]);
                    }
                }
            }
            workgroupBarrier();
        }
        // Not one loop: compilers unroll loops of 32 turns at most, and an array that is indexed in another lies in memory.
        for (var i = 0u; i < TALL; i++) {
            for (var j = 0u; j < WIDE; j++) {
                acc[i * WIDE + j] += sums[i * WIDE + j];
            }
        }
    }
    for (var i = 0u; i < TALL; i++) {
        let r = a_place(i, row_lane);
        for (var j = 0u; j < WIDE / PARTS; j++) {
            let out = col0 + b_place(j, col_lane);
            if (place.first + r < place.end && out < params.cols) {
                let at = y_row(place, r) + params.y_offset + out;
                finish(at, acc[i * WIDE + j], acc[i * WIDE + j + (PARTS - 1u) * (WIDE / PARTS)]);
            }
        }
    }
}
