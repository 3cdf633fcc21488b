enable f16;
enable wgpu_cooperative_matrix;
// block_energy with cooperative matrices: the same bindings, parameters and energies; queries and mean keys rounded to f16.
// A workgroup has the rows of a query block of one head, a subgroup as many as it has lanes, at most 32, whose queries stay in
// its registers, and goes through the key blocks before it, 16 at a time, with their means staged in workgroup memory. Scores
// pass through it too: a lane adds up sixteen rows for one key block, and the first sixteen lanes what all have found.
// Bytes moved: those of block_energy, means once a query block and head. Grid: (num_heads, query blocks of the dispatch); the
// last query block, usually the longest, starts first. CPU reference: src/cpu/block_energy.rs
#import numbers
#import matrices
// Units of 32 rows.
#import SUBGROUPS = 4
// Sixteens along a head.
#import SPANS = 4
// Quads of a mean that a lane stages.
#import LOADS = 2
// Matrices along the rows of a subgroup, along a head, and along sixteen keys or channels.
#let ROWS = SUBGROUP / MATRIX / UNITS
#let ALONG = SPANS * 16 / MATRIX
#let FINER = 16 / MATRIX
#let STEP_ROWS = FINER * ROWS
#let OWN = ALONG * ROWS

#import block_energy_params
@group(0) @binding(1) var<storage, read> q: array<f32>;
@group(0) @binding(2) var<storage, read> means: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> energies: array<f32>;

const KEYS: u32 = 16u;
const BLOCK: u32 = 32u * SUBGROUPS;
const WG: u32 = BLOCK * UNITS;
// Rows of a subgroup.
const OWN_ROWS: u32 = SUBGROUP / UNITS;
const HEAD_DIM: u32 = 16u * SPANS;
const QUADS: u32 = HEAD_DIM / 4u;
// Lanes that stage a mean.
const LANES: u32 = WG / KEYS;
const_assert LOADS * LANES >= QUADS;
// Rows in workgroup memory, in elements of the arrays: padded so that eight rows fall on different banks.
const KEY_STRIDE: u32 = QUADS + 2u;
const SCORE_STRIDE: u32 = BLOCK + 4u;
const QUERY_STRIDE: u32 = 6u;

var<workgroup> keys: array<vec4<f16>, KEYS * KEY_STRIDE>;
// [16, rows]
var<workgroup> scores: array<f32, 16u * SCORE_STRIDE>;
var<workgroup> queries: array<vec4<f16>, BLOCK * QUERY_STRIDE>;
// Log-sum-exps of sixteen rows each: [sixteen, key].
var<workgroup> ends: array<f32, BLOCK>;

@compute @workgroup_size(WG)
fn block_energy_coop(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(subgroup_invocation_id) within: u32,
) {
    let index = groups.y - 1u - group.y;
    let block = params.first_block + index;
    let own = params.current + block;
    let head = group.x;
    let kv_head = head / (params.num_heads / params.num_kv_heads);
    // Tokens of the query block that the chunk has.
    let first = select(0u, params.front, block == 0u);
    let end = min(BLOCK, params.front + params.q_len - block * BLOCK);
    let first_row = subgroup * OWN_ROWS;
    let mine = first_row + within % OWN_ROWS;
    let row = params.q_first + block * BLOCK + clamp(mine, first, end - 1u) - params.front;

    var own_queries: array<MatrixA, OWN>;
    #unroll c < SPANS
        #unroll i < 4
            let at = row * params.q_stride + head * HEAD_DIM + c * 16u + i * 4u;
            queries[mine * QUERY_STRIDE + i] =
                vec4<f16>(vec4(q[at], q[at + 1u], q[at + 2u], q[at + 3u]) * params.scale);
        #end
        workgroupBarrier();
        #unroll f < FINER
            #unroll r < ROWS
                let at = (first_row + r * MATRIX) * QUERY_STRIDE + f * MATRIX_QUADS;
                own_queries[(c * FINER + f) * ROWS + r] = coopLoadT<MatrixA>(&queries[at], QUERY_STRIDE);
            #end
        #end
        workgroupBarrier();
    #end

    // A lane stages quads of one mean; those of the next step are loaded before the scores of this one. Past the last block
    // before the query's own it stands in again.
    let key = lane / LANES;
    let quad = lane % LANES;
    let begin = kv_head * params.mean_stride;
    let last = max(own, 1u) - 1u;
    var next: array<vec4<f32>, LOADS>;
    #unroll i < LOADS
        let c = quad + i * LANES;
        if (c < QUADS) {
            keys[key * KEY_STRIDE + c] = vec4<f16>(means[(begin + min(key, last)) * QUADS + c]);
        }
    #end
    workgroupBarrier();

    // A lane reduces a column of the scores over sixteen rows; lanes above do what those below them do.
    let reduces = lane % BLOCK;
    let row0 = reduces / 16u * 16u;
    let score_of_lane = reduces % 16u * SCORE_STRIDE + row0;
    for (var j0 = 0u; j0 < own; j0 += KEYS) {
        var products: array<MatrixC, STEP_ROWS>;
        #unroll i < STEP_ROWS
            products[i] = MatrixC();
        #end
        #unroll c < ALONG
            #unroll f < FINER
                let k = coopLoad<MatrixB>(&keys[f * MATRIX * KEY_STRIDE + c * MATRIX_QUADS], KEY_STRIDE);
                #unroll r < ROWS
                    products[f * ROWS + r] = coopMultiplyAdd(own_queries[c * ROWS + r], k, products[f * ROWS + r]);
                #end
            #end
        #end
        let at = (begin + min(j0 + KEYS + key, last)) * QUADS;
        #unroll i < LOADS
            let c = quad + i * LANES;
            if (c < QUADS) {
                next[i] = means[at + c];
            }
        #end
        #unroll f < FINER
            #unroll r < ROWS
                coopStore(products[f * ROWS + r], &scores[f * MATRIX * SCORE_STRIDE + first_row + r * MATRIX], SCORE_STRIDE);
            #end
        #end
        workgroupBarrier();
        #unroll i < LOADS
            let c = quad + i * LANES;
            if (c < QUADS) {
                keys[key * KEY_STRIDE + c] = vec4<f16>(next[i]);
            }
        #end
        var top = LOWEST;
        var seen: array<f32, 16>;
        #unroll i < 16
            seen[i] = select(LOWEST, scores[score_of_lane + i], row0 + i >= first && row0 + i < end);
            top = max(top, seen[i]);
        #end
        var sum = 0.0;
        #unroll i < 16
            sum += exp2(seen[i] - top);
        #end
        ends[reduces] = top + log2(sum);
        workgroupBarrier();
        if (lane < 16u && j0 + lane < own) {
            var most = ends[lane];
            #unroll i < SUBGROUPS
                most = max(most, max(ends[i * 32u + lane], ends[i * 32u + 16u + lane]));
            #end
            var all = 0.0;
            #unroll i < SUBGROUPS
                all += exp2(ends[i * 32u + lane] - most) + exp2(ends[i * 32u + 16u + lane] - most);
            #end
            energies[(head * groups.y + index) * params.energy_stride + j0 + lane] = most + log2(all);
        }
    }
}
