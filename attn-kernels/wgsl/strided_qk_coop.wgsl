enable f16;
enable wgpu_cooperative_matrix;
// strided_qk with cooperative matrices: the same bindings, parameters and parts, f16 keys only, queries rounded to f16.
// A subgroup of 32 lanes owns 64 x 64 scores, a workgroup 2 x 4 subgroups. All go through the channels 16 at a time, for
// each t of a stride in turn; queries and keys are loaded a step ahead of their use. At the end a lane owns a row for
// the exponentials of a matrix. q is bound as vec4: rows of it start at multiples of four.
// Grid: (ceil(columns / COLS), ceil(rows / ROWS), num_heads). Needs subgroups of exactly 32.
// CPU reference: src/cpu/strided_qk.rs
#import numbers
#import BLOCK_SIZE = 16
#import STRIDE = 8
// Matrices along a head.
#import SPANS = 4
// Parts of a subgroup's columns, and matrices of a part: their product is 4.
#import PARTS = 4
#import WIDTH = 1

struct StridedQkParams {
    num_heads: u32,
    num_kv_heads: u32,
    q_stride: u32,
    q_first: u32,
    q_len: u32,
    front: u32,
    first_row: u32,
    rows: u32,
    key_start: u32, // column of grid row 0
    kv_len: u32,
    table: u32,
    part_stride: u32,
    scale: f32,
    causal: u32, // 1: a row sees the columns up to its own
    pad0: u32,
    pad1: u32,
}

// Eight elements of a key: see kv_f16.
struct Chunk { low: vec4<f16>, high: vec4<f16> }

@group(0) @binding(0) var<uniform> params: StridedQkParams;
@group(0) @binding(1) var<storage, read> q: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> k_cache: array<Chunk>;
@group(0) @binding(3) var<storage, read> tables: array<u32>;
@group(0) @binding(4) var<storage, read_write> parts: array<f32>;

const WG: u32 = 256u;
const ROWS: u32 = 128u;
const COLS: u32 = 256u;
const CHUNKS: u32 = SPANS * 2u;
const STEPS: u32 = SPANS * STRIDE;
// Rows in workgroup memory, padded so that eight rows fall on different banks.
const TILE_STRIDE: u32 = 6u;
const SCORE_STRIDE: u32 = 36u;

var<workgroup> q_tile: array<vec4<f16>, ROWS * TILE_STRIDE>;
var<workgroup> k_tile: array<vec4<f16>, COLS * TILE_STRIDE>;
// [subgroup, 16, rows]: a lane reads its row without bank conflicts.
var<workgroup> scores: array<f32, 8u * 16u * SCORE_STRIDE>;

// What a lane stages: eight channels of a row, sixteen of a column.
struct Staged { q: Chunk, k0: Chunk, k1: Chunk }

@compute @workgroup_size(WG)
fn strided_qk_coop(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(subgroup_invocation_id) within: u32,
) {
    let row0 = params.first_row + group.y * ROWS;
    let col0 = group.x * COLS;
    let masked = params.causal == 1u && col0 > params.key_start + row0 + ROWS - 1u;
    // Once or not at all: cooperative matrices may not follow a return.
    for (var go = select(1u, 0u, masked); go > 0u; go--) {
        let head = group.z;
        let kv_head = head / (params.num_heads / params.num_kv_heads);
        // STRIDE divides BLOCK_SIZE: the tokens of a column share a block.
        let key = (col0 + lane) * STRIDE;
        let block = tables[params.table + min(key, params.kv_len - 1u) / BLOCK_SIZE];
        let key_at = (block * params.num_kv_heads + kv_head) * CHUNKS * BLOCK_SIZE + key % BLOCK_SIZE;
        let side = lane / ROWS;
        let query = (row0 + lane % ROWS) * STRIDE + STRIDE - 1u;

        let row_of = subgroup / 4u * 64u;
        let col_of = subgroup % 4u * 64u;
        var s: array<coop_mat16x16<f32, C>, 16>;
        #unroll i < 16
            s[i] = coop_mat16x16<f32, C>();
        #end
        var next = load(0u, query, head, side, key, key_at);
        for (var step = 0u; step < STEPS; step++) {
            q_tile[lane % ROWS * TILE_STRIDE + side * 2u] = next.q.low;
            q_tile[lane % ROWS * TILE_STRIDE + side * 2u + 1u] = next.q.high;
            k_tile[lane * TILE_STRIDE] = next.k0.low;
            k_tile[lane * TILE_STRIDE + 1u] = next.k0.high;
            k_tile[lane * TILE_STRIDE + 2u] = next.k1.low;
            k_tile[lane * TILE_STRIDE + 3u] = next.k1.high;
            workgroupBarrier();
            next = load(min(step + 1u, STEPS - 1u), query, head, side, key, key_at);
            var k: array<coop_mat16x16<f16, B>, 4>;
            #unroll j < 4
                k[j] = coopLoad<coop_mat16x16<f16, B>>(&k_tile[(col_of + j * 16u) * TILE_STRIDE], TILE_STRIDE);
            #end
            #unroll i < 4
                let a = coopLoadT<coop_mat16x16<f16, A>>(&q_tile[(row_of + i * 16u) * TILE_STRIDE], TILE_STRIDE);
                #unroll j < 4
                    s[i * 4u + j] = coopMultiplyAdd(a, k[j], s[i * 4u + j]);
                #end
            #end
            workgroupBarrier();
        }

        // Two matrices of rows at a time.
        let columns = (params.kv_len + STRIDE - 1u) / STRIDE;
        let base = subgroup * 16u * SCORE_STRIDE;
        #unroll pair < 2
            let row = group.y * ROWS + row_of + pair * 32u + within;
            let own = params.key_start + params.first_row + row;
            let last = select(columns - 1u, min(columns - 1u, own), params.causal == 1u);
            #unroll p < PARTS
                var top = LOWEST;
                var sum = 0.0;
                #unroll w < WIDTH
                    coopStore(s[pair * 8u + p * WIDTH + w], &scores[base], SCORE_STRIDE);
                    coopStore(s[pair * 8u + 4u + p * WIDTH + w], &scores[base + 16u], SCORE_STRIDE);
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

// Channels 16 * (step / STRIDE) on of what the lane stages, for t = step % STRIDE; zeros beyond either end.
fn load(step: u32, query: u32, head: u32, side: u32, key: u32, key_at: u32) -> Staged {
    let span = step / STRIDE;
    let t = step % STRIDE;
    var staged: Staged;
    let token = query - t;
    if (token >= params.front && token - params.front < params.q_len) {
        let row = params.q_first + token - params.front;
        let at = (row * params.q_stride + head * SPANS * 16u) / 4u + span * 4u + side * 2u;
        staged.q = Chunk(vec4<f16>(q[at]), vec4<f16>(q[at + 1u]));
    }
    if (key + t < params.kv_len) {
        let at = key_at + span * 2u * BLOCK_SIZE + t;
        staged.k0 = k_cache[at];
        staged.k1 = k_cache[at + BLOCK_SIZE];
    }
    return staged;
}
