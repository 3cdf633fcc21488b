enable f16;
enable wgpu_cooperative_matrix;
// strided_qk with cooperative matrices: the same bindings, parameters and parts, f16 keys only, strides of f16.
// A unit owns 64 x 64 scores, a workgroup 2 x 4 units; smaller subgroups share its rows. All go through the channels eight at a
// time for four t at once: four lanes then read neighbouring tokens of a key block, or of a stride of queries.
// Both are loaded a step ahead of their use, and keys cut to the sequence where they are staged, so that no load waits
// for a branch. At the end a lane owns a row for the exponentials of a matrix.
// Bytes moved: those of strided_qk, keys and queries once a tile of ROWS x COLS.
// Grid: (ceil(rows / ROWS), ceil(columns / COLS), num_heads): workgroups side by side share their keys.
// CPU reference: src/cpu/strided_qk.rs
#import numbers
#import halves
#import BLOCK_SIZE = 16
#import STRIDE = 8
// Sixteens along a head.
#import SPANS = 4
// Parts of a unit's columns, and sixteens of a part: their product is 4.
#import PARTS = 4
#import WIDTH = 1
#import matrices

// Matrices of a subgroup along rows and along columns, and of a step along eight channels of four t.
#let DOWN = 64 / MATRIX / SHARE
#let ACROSS = 64 / MATRIX * UNITS
#let OWN = DOWN * ACROSS
#let STEPS_WITHIN = 32 / MATRIX
// Rows that lanes own at a time, in matrices, and how often; parts of a subgroup's columns; sixteens in matrices.
#let PASS_ROWS = SUBGROUP / MATRIX
#let PASSES = 64 / SHARE / SUBGROUP
#let OWN_PARTS = PARTS * UNITS
#let FINER = 16 / MATRIX

#import strided_qk_params

// Eight elements of a key, see kv_f16: one load of sixteen bytes, which a struct of vec4<f16> is not.
alias Chunk = vec4<u32>;

@group(0) @binding(1) var<storage, read> strides: array<Chunk>;
@group(0) @binding(2) var<storage, read> k_cache: array<Chunk>;
@group(0) @binding(3) var<storage, read> tables: array<u32>;
@group(0) @binding(4) var<storage, read_write> parts: array<f32>;

const WG: u32 = 256u;
const ROWS: u32 = 128u;
const COLS: u32 = 256u;
const CHUNKS: u32 = SPANS * 2u;
// Four t of a chunk a step.
const STEPS_A_CHUNK: u32 = STRIDE / 4u;
const STEPS: u32 = CHUNKS * STEPS_A_CHUNK;
// Rows in workgroup memory, four t of eight channels, padded so that eight rows fall on different banks.
const TILE_STRIDE: u32 = 10u;
const SCORE_STRIDE: u32 = WG + 4u;
// Subgroups along columns, of which each has all rows of a unit or a share of them.
const N_SUBS: u32 = 4u / UNITS;

var<workgroup> q_tile: array<vec4<f16>, ROWS * TILE_STRIDE>;
var<workgroup> k_tile: array<vec4<f16>, COLS * TILE_STRIDE>;
// [16, lanes]: a lane reads its row without bank conflicts.
var<workgroup> scores: array<f32, 16u * SCORE_STRIDE>;

@compute @workgroup_size(WG)
fn strided_qk_coop(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(subgroup_invocation_id) within: u32,
) {
    let row0 = group.x * ROWS;
    let col0 = group.y * COLS;
    let masked = params.causal == 1u && col0 > params.key_start + params.first_row + row0 + ROWS - 1u;
    // Once or not at all: cooperative matrices may not follow a return.
    for (var go = select(1u, 0u, masked); go > 0u; go--) {
        let head = group.z;
        let kv_head = head / (params.num_heads / params.num_kv_heads);
        // A lane stages one of the four t, of four columns and two rows. STRIDE divides BLOCK_SIZE: the tokens of a column share
        // a block.
        let mine = lane % 4u;
        let key = (col0 + lane / 4u) * STRIDE + mine;
        var key_at: array<u32, 4>;
        #unroll i < 4
            let first = (col0 + lane / 4u + i * 64u) * STRIDE;
            let block = tables[params.table + min(first, params.kv_len - 1u) / BLOCK_SIZE];
            key_at[i] = (block * params.num_kv_heads + kv_head) * CHUNKS * BLOCK_SIZE + first % BLOCK_SIZE + mine;
        #end
        // Rows past the last repeat it.
        var row_at: array<u32, 2>;
        #unroll i < 2
            let row = min(row0 + lane / 4u + i * 64u, params.rows - 1u);
            row_at[i] = (head * params.rows + row) * CHUNKS * STRIDE + mine;
        #end

        let row_of = subgroup / N_SUBS * DOWN * MATRIX;
        let col_of = subgroup % N_SUBS * ACROSS * MATRIX;
        var s: array<MatrixC, OWN>;
        #unroll i < OWN
            s[i] = MatrixC();
        #end
        var k_next: array<Chunk, 4>;
        var q_next: array<Chunk, 2>;
        #unroll i < 4
            k_next[i] = k_cache[key_at[i]];
        #end
        #unroll i < 2
            q_next[i] = strides[row_at[i]];
        #end
        for (var step = 0u; step < STEPS; step++) {
            let t = step % STEPS_A_CHUNK * 4u;
            #unroll i < 4
                let to = (lane / 4u + i * 64u) * TILE_STRIDE + mine * 2u;
                let real = key + i * 64u * STRIDE + t < params.kv_len;
                let k = select(vec4<u32>(), k_next[i], real);
                k_tile[to] = halves(k.x, k.y);
                k_tile[to + 1u] = halves(k.z, k.w);
            #end
            #unroll i < 2
                let to = (lane / 4u + i * 64u) * TILE_STRIDE + mine * 2u;
                q_tile[to] = halves(q_next[i].x, q_next[i].y);
                q_tile[to + 1u] = halves(q_next[i].z, q_next[i].w);
            #end
            workgroupBarrier();
            let next = min(step + 1u, STEPS - 1u);
            let next_chunk = next / STEPS_A_CHUNK;
            let next_t = next % STEPS_A_CHUNK * 4u;
            #unroll i < 4
                k_next[i] = k_cache[key_at[i] + next_chunk * BLOCK_SIZE + next_t];
            #end
            #unroll i < 2
                q_next[i] = strides[row_at[i] + next * 4u];
            #end
            #unroll part < STEPS_WITHIN
                var k: array<MatrixB, ACROSS>;
                #unroll j < ACROSS
                    let k_at = (col_of + j * MATRIX) * TILE_STRIDE + part * MATRIX_QUADS;
                    k[j] = coopLoad<MatrixB>(&k_tile[k_at], TILE_STRIDE);
                #end
                #unroll i < DOWN
                    let q_at = (row_of + i * MATRIX) * TILE_STRIDE + part * MATRIX_QUADS;
                    let a = coopLoadT<MatrixA>(&q_tile[q_at], TILE_STRIDE);
                    #unroll j < ACROSS
                        s[i * ACROSS + j] = coopMultiplyAdd(a, k[j], s[i * ACROSS + j]);
                    #end
                #end
            #end
            workgroupBarrier();
        }

        // As many rows at a time as a subgroup has lanes.
        let columns = (params.kv_len + STRIDE - 1u) / STRIDE;
        let base = subgroup * SUBGROUP;
        #unroll turn < PASSES
            let row = row0 + row_of + turn * SUBGROUP + within;
            let own = params.key_start + params.first_row + row;
            let last = select(columns - 1u, min(columns - 1u, own), params.causal == 1u);
            #unroll p < OWN_PARTS
                var top = LOWEST;
                var sum = 0.0;
                #unroll w < WIDTH
                    #unroll r < PASS_ROWS
                        #unroll f < FINER
                            let matrix = (turn * PASS_ROWS + r) * ACROSS + (p * WIDTH + w) * FINER + f;
                            coopStore(s[matrix], &scores[f * MATRIX * SCORE_STRIDE + base + r * MATRIX], SCORE_STRIDE);
                        #end
                    #end
                    workgroupBarrier();
                    let first = col0 + col_of + (p * WIDTH + w) * 16u;
                    var seen: array<f32, 16>;
                    var most = LOWEST;
                    #unroll i < 16
                        let x = scores[base + i * SCORE_STRIDE + within] * params.scale;
                        seen[i] = select(LOWEST, x, first + i <= last);
                        most = max(most, seen[i]);
                    #end
                    let grown = max(top, most);
                    sum = sum * exp2(top - grown);
                    #unroll i < 16
                        sum += exp2(seen[i] - grown);
                    #end
                    top = grown;
                    workgroupBarrier();
                #end
                let part = (col0 + col_of) / (16u * WIDTH) + p;
                if (row < params.rows && part < params.part_stride) {
                    parts[(head * params.rows + row) * params.part_stride + part] = top + log2(sum);
                }
            #end
        #end
    }
}
