// matmul with activations in codes of 8 bits, for many rows where no cooperative matrices run: bindings, parameters, and the
// order of every sum are those of matmul_int8, so that results agree to the bit.
// A workgroup owns ROWS rows and COLS columns of each part, a lane TALL of the rows and WIDE of the columns (of all parts). It
// goes through the slices of k one after the other, and through the blocks of a slice in order; one block is in workgroup
// memory, the next on its way to registers.
// Bytes moved: the weights once for ROWS rows, 1.25 an activation for COLS columns.
// Grid: (column tiles, row tiles). CPU reference: src/cpu/matmul_int8.rs
#import TALL = 8
#import WIDE = 8
// Lanes along rows and along columns.
#import ROW_LANES = 8
#import COL_LANES = 16
#import PARTS = 1
#import SUMS = 64
#import SLICES = 64
#import weights = weights_q4k
#import epilogue = epilogue_store
#import int8_params
#import tile_places

const WG: u32 = ROW_LANES * COL_LANES;
const ROWS: u32 = TALL * ROW_LANES;
const ALL_COLS: u32 = WIDE * COL_LANES;
const COLS: u32 = ALL_COLS / PARTS;
const_assert SUMS == TALL * WIDE && WG >= ROWS && WG >= ALL_COLS && TALL % 4u == 0u && WIDE % (RUN * PARTS) == 0u;
// Words from one quad of k to the next in workgroup memory, padded against bank conflicts.
const A_STRIDE: u32 = ROWS + 4u;
const B_STRIDE: u32 = ALL_COLS + 4u;
// Lanes that share a column's block, and words of it that each stages; vectors of activations a lane stages.
const SHARE: u32 = WG / ALL_COLS;
const W_WORDS: u32 = 8u / SHARE;
const X_LOADS: u32 = (ROWS * 2u + WG - 1u) / WG;

var<workgroup> a_tile: array<u32, 8u * A_STRIDE>;
var<workgroup> b_tile: array<u32, 8u * B_STRIDE>;
var<workgroup> a_scales: array<vec2<f32>, ROWS>;
// Scale of each half, and the offset.
var<workgroup> b_scales: array<vec2<f32>, HALVES * ALL_COLS>;

@compute @workgroup_size(WG)
fn matmul_int8_tile(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row0 = group.y * ROWS;
    let col0 = group.x * COLS;
    let row_lane = lane / COL_LANES;
    let col_lane = lane % COL_LANES;
    let w_col = lane % ALL_COLS;
    let w_word = lane / ALL_COLS * W_WORDS;
    let col = min(col0 + w_col % COLS, params.cols - 1u) + w_col / COLS * params.cols;
    let scale_row = min(row0 + lane % ROWS, params.rows - 1u) * params.blocks;

    var acc: array<f32, SUMS>;
    var x_next: array<vec4<u32>, X_LOADS>;
    for (var i = 0u; i < X_LOADS; i++) {
        x_next[i] = x_vector(row0, 0u, lane + i * WG);
    }
    var d_next = scales[scale_row];
    var w_next = load_block(0u, col, params.cols * PARTS, params.blocks);
    let slices = min(SLICES, params.blocks);
    for (var slice = 0u; slice < slices; slice++) {
        var sums = array<f32, SUMS>();
        for (var block = slice; block < params.blocks; block += SLICES) {
            for (var i = 0u; i < X_LOADS; i++) {
                let at = lane + i * WG;
                if (at < ROWS * 2u) {
                    for (var j = 0u; j < 4u; j++) {
                        a_tile[(at % 2u * 4u + j) * A_STRIDE + at / 2u] = x_next[i][j];
                    }
                }
            }
            if (lane < ROWS) {
                a_scales[lane] = d_next;
            }
            for (var j = 0u; j < W_WORDS; j++) {
                b_tile[(w_word + j) * B_STRIDE + w_col] = codes(w_next, w_word + j);
            }
            if (w_word == 0u) {
                for (var half = 0u; half < HALVES; half++) {
                    b_scales[half * ALL_COLS + w_col] = vec2(scale(w_next, half), offset(w_next));
                }
            }
            workgroupBarrier();
            // Behind the last block of a slice comes the first of the next.
            var next = block + SLICES;
            if (next >= params.blocks) {
                next = min(slice + 1u, params.blocks - 1u);
            }
            for (var i = 0u; i < X_LOADS; i++) {
                x_next[i] = x_vector(row0, next, lane + i * WG);
            }
            d_next = scales[scale_row + next];
            w_next = load_block(next, col, params.cols * PARTS, params.blocks);
            // As add_block.
            for (var half = 0u; half < HALVES; half++) {
                var dots = array<i32, SUMS>();
                for (var k = half * 8u / HALVES; k < (half + 1u) * 8u / HALVES; k++) {
                    var a: array<u32, TALL>;
                    var b: array<u32, WIDE>;
                    for (var i = 0u; i < TALL; i++) {
                        a[i] = a_tile[k * A_STRIDE + a_place(i, row_lane)];
                    }
                    for (var j = 0u; j < WIDE; j++) {
                        b[j] = b_tile[k * B_STRIDE + b_place(j, col_lane)];
                    }
                    for (var i = 0u; i < TALL; i++) {
                        for (var j = 0u; j < WIDE; j++) {
                            dots[i * WIDE + j] += dot4I8Packed(b[j], a[i]);
                        }
                    }
                }
                for (var j = 0u; j < WIDE; j++) {
                    let w = b_scales[half * ALL_COLS + b_place(j, col_lane)];
                    for (var i = 0u; i < TALL; i++) {
                        let d = a_scales[a_place(i, row_lane)];
                        let at = i * WIDE + j;
                        sums[at] = fma(w.x * d.x, f32(dots[at]), sums[at]);
                        if (OFFSET && half + 1u == HALVES) {
                            sums[at] = fma(w.y, d.y, sums[at]);
                        }
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
        let row = row0 + a_place(i, row_lane);
        for (var j = 0u; j < WIDE / PARTS; j++) {
            let out = col0 + b_place(j, col_lane);
            if (row < params.rows && out < params.cols) {
                let at = row * params.y_stride + params.y_offset + out;
                finish(at, acc[i * WIDE + j], acc[i * WIDE + j + (PARTS - 1u) * (WIDE / PARTS)]);
            }
        }
    }
}

// Vector `at` of the ROWS x 2 of one block; rows past the end repeat the last.
fn x_vector(row0: u32, block: u32, at: u32) -> vec4<u32> {
    return x[(min(row0 + at / 2u, params.rows - 1u) * params.blocks + block) * 2u + at % 2u];
}
