// Attention of rows to listed blocks under a boolean mask, outputs scattered (gather-scatter form of GSA).
//   q        rows of q_stride f32, [num_heads, head_dim]; k_cache, v_cache, layouts of the kv module
//   rows     [n] Row: where the query is, where the output goes, whose mask and list hold
//   masks    [*, mask_stride] u32: bit p % 32 of word p / 32 says whether the key at position p is attended
//   selected lists of blocks: see context_blocks; a row's list serves all its heads
//   out      [*, num_heads, head_dim] f32; zero for a row that sees no key
// The mask is over the whole context: its bits are gathered by the list as keys are. A list of all blocks is dense
// attention under the mask. One workgroup a row and head. Grid: (num_heads, n folded).
// Bytes moved: 2 * element * keys * head_dim a row and head. CPU reference: src/cpu/masked_attention.rs
#import numbers
#import HEAD_DIM = 64
#import BLOCK_SIZE = 16
#import kv = kv_f16
#import SELECTED = 8
#import context = context_blocks

struct MaskedAttentionParams {
    num_heads: u32,
    num_kv_heads: u32,
    q_stride: u32,
    list_stride: u32,
    mask_stride: u32, // words
    rows: u32,
    scale: f32,
    k_scale: f32, // of fp8
    v_scale: f32,
}

struct Row { q: u32, out: u32, mask: u32, list: u32, len: u32, table: u32 }

@group(0) @binding(0) var<uniform> params: MaskedAttentionParams;
@group(0) @binding(1) var<storage, read> q: array<f32>;
@group(0) @binding(4) var<storage, read> tables: array<u32>;
@group(0) @binding(5) var<storage, read> rows: array<Row>;
@group(0) @binding(6) var<storage, read> masks: array<u32>;
@group(0) @binding(7) var<storage, read_write> out: array<f32>;

const WG: u32 = 64u;
const VALUES: u32 = 1u;
#import reduce_tree
const CHUNKS: u32 = HEAD_DIM / 8u;
// Lanes of one token in the value phase own eight dimensions each; as many tokens as fit go side by side.
const SIDES: u32 = WG / CHUNKS;

var<workgroup> query: array<vec4<f32>, HEAD_DIM / 4u>;
// Keys of a step: their weights times the scale of their values, and where they are; no block where a key is not attended.
var<workgroup> weights: array<f32, WG>;
var<workgroup> blocks: array<u32, WG>;
var<workgroup> merge: array<vec4<f32>, WG * 2u>;

@compute @workgroup_size(WG)
fn masked_attention(@builtin(workgroup_id) group: vec3<u32>, lane: Lane) {
    let index = group.z * 65535u + group.y;
    if (index >= params.rows) {
        return;
    }
    let row = rows[index];
    let head = group.x;
    let kv_head = head / (params.num_heads / params.num_kv_heads);
    let context = context_of(row.list);
    let end = context_end(context, row.len);
    for (var i = lane.index; i < HEAD_DIM / 4u; i += WG) {
        let at = row.q * params.q_stride + head * HEAD_DIM + i * 4u;
        query[i] = vec4(q[at], q[at + 1u], q[at + 2u], q[at + 3u]) * params.scale;
    }
    workgroupBarrier();
    let chunk = lane.index % CHUNKS;
    let side = lane.index / CHUNKS;
    var top = LOWEST;
    var sum = 0.0;
    var low = vec4(0.0);
    var high = vec4(0.0);
    for (var first = 0u; first < end; first += WG) {
        var score: Values;
        score[0] = LOWEST;
        var v_scale = 0.0;
        if (first + lane.index < end) {
            let position = context_position(context, first + lane.index);
            if (attended(row.mask, position)) {
                let block = tables[row.table + position / BLOCK_SIZE] * params.num_kv_heads + kv_head;
                blocks[lane.index] = block;
                score[0] = product(block, position % BLOCK_SIZE);
                v_scale = v_factor(block, position % BLOCK_SIZE);
            }
        }
        let grown = max(top, reduce_max(score, lane)[0]);
        // The score of a key is never as low. One that is no number gives a weight that is none.
        let weight = select(exp(score[0] - grown), 0.0, score[0] <= LOWEST);
        weights[lane.index] = weight * v_scale;
        var weight_of: Values;
        weight_of[0] = weight;
        let shrink = exp(top - grown);
        sum = sum * shrink + reduce_add(weight_of, lane)[0];
        low *= shrink;
        high *= shrink;
        for (var t = side; t < min(WG, end - first) && side < SIDES; t += SIDES) {
            // A value that is not attended may be anything.
            if (!(weights[t] == 0.0)) {
                let v = v_load(v_at(blocks[t], chunk, context_position(context, first + t) % BLOCK_SIZE));
                low = fma(vec4(weights[t]), kv_low(v) - KV_ZERO, low);
                high = fma(vec4(weights[t]), kv_high(v) - KV_ZERO, high);
            }
        }
        top = grown;
        workgroupBarrier();
    }
    merge[lane.index * 2u] = low;
    merge[lane.index * 2u + 1u] = high;
    workgroupBarrier();
    for (var i = lane.index; i < CHUNKS * 2u; i += WG) {
        var total = vec4(0.0);
        for (var s = 0u; s < SIDES; s++) {
            total += merge[s * CHUNKS * 2u + i];
        }
        let value = select(total / sum, vec4(0.0), sum == 0.0);
        for (var d = 0u; d < 4u; d++) {
            out[(row.out * params.num_heads + head) * HEAD_DIM + i * 4u + d] = value[d];
        }
    }
}

fn attended(mask: u32, position: u32) -> bool {
    return ((masks[mask * params.mask_stride + position / 32u] >> (position % 32u)) & 1u) == 1u;
}

fn product(block: u32, offset: u32) -> f32 {
    var sum = 0.0;
    for (var chunk = 0u; chunk < CHUNKS; chunk++) {
        let k = k_load(k_at(block, chunk, offset));
        sum += dot(query[chunk * 2u], kv_low(k) - KV_ZERO) + dot(query[chunk * 2u + 1u], kv_high(k) - KV_ZERO);
    }
    return sum * k_factor(block, offset);
}
