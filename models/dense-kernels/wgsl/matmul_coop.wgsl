enable f16;
enable wgpu_cooperative_matrix;
// matmul with cooperative matrices, for many rows: the same bindings, parameters, rows and epilogues, but x may be f16 (see
// the module of activations). Activations and dequantised weights are rounded to f16, sums are f32.
// A workgroup owns ROWS rows and COLS columns of each part, and goes along its split of k by stages of K_BLOCKS blocks of 32:
// one in workgroup memory, the next AHEAD on their way to registers, since few rows wait for weights. A second stage in
// workgroup memory would save a barrier a block, but halve the workgroups that a multiprocessor holds, which costs more: with
// one stage 128 x 128 runs at 219 TFLOP/s on an H200, with two at 146.
// Few rows of a narrow matrix are cut along k too, to fill the card: y is then [splits, rows, cols], which split_sum adds up.
// With SPLITS_WITHIN = 1 a workgroup goes through all splits and adds up their sums itself, in the same order, so that many rows
// come out as few do, to the bit.
// Grid: (column tiles, row tiles, splits), of routed rows (column tiles, tiles, 1).
// CPU reference: src/cpu/matmul.rs
#import weights = weights_q4
#import rows = rows_plain
#import epilogue = epilogue_store
#import activations = activations_f32
#import numbers = f16_of_codes
#import matmul_params
#import matrices
#import PARTS = 1
// Blocks of a stage.
#import K_BLOCKS = 1
// Sixteens of rows and of columns (of one part) a unit.
#import M_TILES = 2
#import N_TILES = 2
// Stages on their way to registers.
#import AHEAD = 1
// Units along rows and along columns.
#import M_SUBGROUPS = 2
#import N_SUBGROUPS = 2
// Quads of activations a lane stages; blocks of weights, and quads of each. Lanes share the blocks of a stage evenly.
#import X_LOADS = 4
#import W_LOADS = 1
#import W_QUADS = 4
// Parts after the first that go to the epilogue through a patch of workgroup memory of their own, and those that go through the
// first one's after it: fewer barriers, or less memory, so that a multiprocessor holds more workgroups.
#import BESIDE = 0
#import AFTER = 0
// Whether rows of y lie one after the other, so that a whole tile is stored without a detour, and whether it is added to y.
#import DIRECT = 0
#import ADDS = 0
// Whether a workgroup owns all splits, and sixteens of sums of those behind it (at least one).
#import SPLITS_WITHIN = 0
#import TOTAL_TILES = 1

// Matrices of a subgroup along rows, along the columns of one part and of all, and of a stage along k.
#let M_OWN = M_TILES * 16 / MATRIX / M_SHARE
#let N_OWN = N_TILES * 16 / MATRIX / N_SHARE * UNITS
#let ALL_N_OWN = N_OWN * PARTS
#let K_OWN = K_BLOCKS * 32 / MATRIX
#let TOTALS = TOTAL_TILES * 16 / MATRIX / M_SHARE * 16 / MATRIX / N_SHARE * UNITS
// Elements of a matrix that a lane has.
#let OWN = MATRIX * MATRIX / SUBGROUP

@group(0) @binding(1) var<storage, read> x: array<Quad>;

const WG: u32 = 32u * M_SUBGROUPS * N_SUBGROUPS;
const ROWS: u32 = 16u * M_TILES * M_SUBGROUPS;
const COLS: u32 = 16u * N_TILES * N_SUBGROUPS;
const ALL_COLS: u32 = COLS * PARTS;
// Quads of a row and a stage, and blocks of weights of a stage.
const QUADS: u32 = 8u * K_BLOCKS;
const BLOCKS: u32 = ALL_COLS * K_BLOCKS;
const_assert X_LOADS * WG == ROWS * QUADS && W_LOADS * W_QUADS * WG == ALL_COLS * QUADS;
// Subgroups along columns.
const N_SUBS: u32 = N_SUBGROUPS * N_SHARE / UNITS;
// Rows in workgroup memory, in elements of the array: padded so that eight rows fall on different banks.
const STRIDE: u32 = QUADS + 2u;

var<workgroup> a_tile: array<vec4<f16>, ROWS * STRIDE>;
var<workgroup> b_tile: array<vec4<f16>, ALL_COLS * STRIDE>;
// Rows of this workgroup and behind it, in x; in y, whether results are stored without a detour. A vector, because matrices are
// stored to `patches` at multiples of 16 bytes, and variables may lie one behind the other.
var<workgroup> num_rows: vec4<u32>;
// Matrices of each subgroup on their way to the epilogue.
var<workgroup> patches: array<f32, WG * OWN * (1u + BESIDE)>;

@compute @workgroup_size(WG)
fn matmul_coop(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(subgroup_invocation_id) within: u32,
) {
    let place = place_of(group);
    let col0 = group.x * COLS;
    // First result of a workgroup whose rows of y lie one after the other. Stores of matrices begin at multiples of 16 bytes.
    let y0 = (group.z * params.rows + place.first) * params.y_stride + params.y_offset + col0;
    let is_aligned = ((y0 | params.y_stride) & 3u) == 0u;
    // Matrices want a branch that the whole workgroup takes, and be seen to take.
    if (lane == 0u) {
        let rows = place.end - min(place.first, place.end);
        let is_whole = rows >= ROWS && col0 + COLS <= params.cols;
        num_rows = vec4(rows, select(0u, 1u, is_whole && is_aligned), 0u, 0u);
    }
    workgroupBarrier();
    if (num_rows.x == 0u) {
        return;
    }
    let m0 = subgroup / N_SUBS * M_OWN * MATRIX;
    let n0 = subgroup % N_SUBS * N_OWN * MATRIX;
    let w_first = lane % BLOCKS;
    let w_quad = select(lane / BLOCKS * W_QUADS, 0u, W_QUADS == 8u);
    let first_block = min(group.z * params.split_blocks, params.blocks - 1u);
    let last_block = select(first_block + params.split_blocks, params.blocks, SPLITS_WITHIN == 1u);
    let end_block = min(last_block, params.blocks);

    var total: array<MatrixC, TOTALS>;
    #unroll once < SPLITS_WITHIN
        #unroll i < TOTALS
            total[i] = MatrixC();
        #end
    #end
    var acc: array<MatrixC, ALL_N_OWN * M_OWN>;
    #unroll n < ALL_N_OWN
        #unroll m < M_OWN
            acc[n * M_OWN + m] = MatrixC();
        #end
    #end
    // First quad of each row of which this lane loads quads.
    var x_rows: array<u32, X_LOADS>;
    #unroll i < X_LOADS
        x_rows[i] = x_row(place, (lane + i * WG) / QUADS) / 4u;
    #end
    var x_next: array<Quad, X_LOADS * AHEAD>;
    var w_next: array<Block, W_LOADS * AHEAD>;
    #unroll s < AHEAD
        let stage = first_block + s * K_BLOCKS;
        #unroll i < X_LOADS
            x_next[s * X_LOADS + i] = x_quad(x_rows[i], stage, end_block, lane + i * WG);
        #end
        #unroll i < W_LOADS
            w_next[s * W_LOADS + i] = w_block(place.col, col0, stage, end_block, w_first + i * WG);
        #end
    #end
    for (var block = first_block; block < end_block; block += K_BLOCKS * AHEAD) {
        #unroll once < SPLITS_WITHIN
            if (block % params.split_blocks == 0u) {
                #unroll i < TOTALS
                    total[i] = total[i] + acc[i];
                    acc[i] = MatrixC();
                #end
            }
        #end
        #unroll s < AHEAD
            #unroll i < X_LOADS
                let at = lane + i * WG;
                a_tile[at / QUADS * STRIDE + at % QUADS] = vec4<f16>(x_next[s * X_LOADS + i]);
            #end
            #unroll i < W_LOADS
                let at = w_first + i * WG;
                let b_row = at % ALL_COLS * STRIDE + at / ALL_COLS * 8u;
                #unroll j < W_QUADS
                    b_tile[b_row + w_quad + j] = quad_f16(w_next[s * W_LOADS + i], w_quad + j);
                #end
            #end
            workgroupBarrier();
            let next = block + (s + AHEAD) * K_BLOCKS;
            #unroll i < X_LOADS
                x_next[s * X_LOADS + i] = x_quad(x_rows[i], next, end_block, lane + i * WG);
            #end
            #unroll i < W_LOADS
                w_next[s * W_LOADS + i] = w_block(place.col, col0, next, end_block, w_first + i * WG);
            #end
            #unroll k < K_OWN
                var am: array<MatrixA, M_OWN>;
                #unroll m < M_OWN
                    am[m] = coopLoadT<MatrixA>(&a_tile[(m0 + m * MATRIX) * STRIDE + k * MATRIX_QUADS], STRIDE);
                #end
                #unroll n < ALL_N_OWN
                    let col = n / N_OWN * COLS + n0 + n % N_OWN * MATRIX;
                    let bm = coopLoad<MatrixB>(&b_tile[col * STRIDE + k * MATRIX_QUADS], STRIDE);
                    #unroll m < M_OWN
                        acc[n * M_OWN + m] = coopMultiplyAdd(am[m], bm, acc[n * M_OWN + m]);
                    #end
                #end
            #end
            workgroupBarrier();
        #end
    }

    #unroll once < SPLITS_WITHIN
        #unroll i < TOTALS
            acc[i] = total[i] + acc[i];
        #end
    #end
    #unroll once < DIRECT
        if (num_rows.y == 1u) {
            let stride = params.y_stride;
            #unroll n < N_OWN
                #unroll m < M_OWN
                    let at = y0 + (m0 + m * MATRIX) * stride + n0 + n * MATRIX;
                    #unroll add < ADDS
                        acc[n * M_OWN + m] = acc[n * M_OWN + m] + coopLoadT<MatrixC>(&y[at], stride);
                    #end
                    coopStoreT(acc[n * M_OWN + m], &y[at], stride);
                #end
            #end
            return;
        }
    #end
    let patch0 = subgroup * (1u + BESIDE) * MATRIX * MATRIX;
    #unroll n < N_OWN
        #unroll m < M_OWN
            coopStoreT(acc[n * M_OWN + m], &patches[patch0], MATRIX);
            #unroll part < BESIDE
                let own = patch0 + (part + 1u) * MATRIX * MATRIX;
                coopStoreT(acc[((part + 1u) * N_OWN + n) * M_OWN + m], &patches[own], MATRIX);
            #end
            workgroupBarrier();
            var first_part: array<f32, OWN>;
            #unroll i < OWN
                first_part[i] = patches[patch0 + within + i * SUBGROUP];
            #end
            #unroll part < AFTER
                workgroupBarrier();
                coopStoreT(acc[((part + 1u) * N_OWN + n) * M_OWN + m], &patches[patch0], MATRIX);
                workgroupBarrier();
            #end
            #unroll i < OWN
                let at = within + i * SUBGROUP;
                let r = m0 + m * MATRIX + at / MATRIX;
                let col = col0 + n0 + n * MATRIX + at % MATRIX;
                if (place.first + r < place.end && col < params.cols) {
                    let y_at = group.z * params.rows * params.y_stride + y_row(place, r) + params.y_offset + col;
                    finish(y_at, first_part[i], patches[patch0 + BESIDE * MATRIX * MATRIX + at]);
                }
            #end
            workgroupBarrier();
        #end
    #end
}

// Quad `at` of the ROWS x QUADS activations of the stage from `block` on, of the row from `row` on; blocks past the end of the
// split are zero.
fn x_quad(row: u32, block: u32, end_block: u32, at: u32) -> Quad {
    let own = block + at % QUADS / 8u;
    let quad = x[row + min(own, end_block - 1u) * 8u + at % 8u];
    return select(quad, Quad(), own >= end_block);
}

// Block `at` of the K_BLOCKS x ALL_COLS of the stage from `block` on, parts side by side, in the matrix whose columns begin at
// `first_col`; columns and blocks past the end repeat the last.
fn w_block(first_col: u32, col0: u32, block: u32, end_block: u32, at: u32) -> Block {
    let within = at % ALL_COLS;
    let col = first_col + min(col0 + within % COLS, params.cols - 1u) + within / COLS * params.cols;
    return load_block(min(block + at / ALL_COLS, end_block - 1u), col, all_cols(), params.blocks);
}
