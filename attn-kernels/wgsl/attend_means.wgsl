// Adds the blocks that lists leave out to the attention of a chunk's rows, each as its mean key and value with the weight of all
// its tokens (FlashPrefill, arXiv 2608.19758).
//   q         rows of q_stride f32, [num_heads, head_dim] from 0; token 0 is row q_first, after `front` tokens of its block
//   mean_keys, mean_values  [num_kv_heads, mean_stride, head_dim] f32 of block_means
//   selected  lists [query blocks, num_kv_heads] of list_stride u32 from first_list on: count, ascending blocks
//   out       rows of [num_heads, head_dim] f32;  lse rows of [num_heads] f32, natural log: of the listed blocks, then of all
// Left out are the blocks before a row's own that its list does not name. SHARE lanes own a row of one head, each a part of the
// channels, as in paged_prefill, and go through them KEYS at a time; all lanes of a workgroup share a list.
// Grid: (num_heads, query blocks * ceil(BLOCK / ROWS)). Bytes moved: 8 * head_dim a block left out and workgroup, and
// 16 * head_dim a row. CPU reference: src/cpu/attend_means.rs
#import numbers
#import HEAD_DIM = 64
#import BLOCK = 128
#import SHARE = 2
// Rows of a workgroup.
#import ROWS = 64
#import row_sum

struct AttendMeansParams {
    num_heads: u32,
    num_kv_heads: u32,
    q_stride: u32,
    q_first: u32,
    q_len: u32,
    front: u32,
    current: u32, // key block of query block 0
    mean_stride: u32,
    list_stride: u32,
    first_list: u32,
    scale: f32,
    query_blocks: u32,
}

@group(0) @binding(0) var<uniform> params: AttendMeansParams;
@group(0) @binding(1) var<storage, read> q: array<f32>;
@group(0) @binding(2) var<storage, read> mean_keys: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> mean_values: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read> selected: array<u32>;
@group(0) @binding(5) var<storage, read_write> out: array<f32>;
@group(0) @binding(6) var<storage, read_write> lse: array<f32>;

const WG: u32 = ROWS * SHARE;
const PARTS: u32 = (BLOCK + ROWS - 1u) / ROWS;
const QUADS: u32 = HEAD_DIM / 4u;
// Quads of a lane.
const OWN: u32 = QUADS / SHARE;
// Blocks that are taken at once.
const KEYS: u32 = 4u;

// [turn, block, lane]
var<workgroup> products: array<f32, 2u * KEYS * WG>;

@compute @workgroup_size(WG)
fn attend_means(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let head = group.x;
    let kv_head = head / (params.num_heads / params.num_kv_heads);
    let block = group.y / PARTS;
    let own = params.current + block;
    // Tokens of the query block that the chunk has.
    let first = select(0u, params.front, block == 0u);
    let end = min(BLOCK, params.front + params.q_len - block * BLOCK);
    let mine = group.y % PARTS * ROWS + lane / SHARE;
    let row = params.q_first + block * BLOCK + clamp(mine, first, end - 1u) - params.front;
    let quad0 = lane % SHARE * OWN;
    var query: array<vec4<f32>, OWN>;
    var sums: array<vec4<f32>, OWN>;
    let at = (row * params.num_heads + head) * HEAD_DIM + quad0 * 4u;
    for (var i = 0u; i < OWN; i++) {
        let begin = row * params.q_stride + head * HEAD_DIM + (quad0 + i) * 4u;
        query[i] = vec4(q[begin], q[begin + 1u], q[begin + 2u], q[begin + 3u]) * params.scale;
        let o = at + i * 4u;
        sums[i] = vec4(out[o], out[o + 1u], out[o + 2u], out[o + 3u]);
    }
    // The output is normalised: of sum 1.
    var top = lse[row * params.num_heads + head];
    var sum = 1.0;
    let list = (params.first_list + block * params.num_kv_heads + kv_head) * params.list_stride;
    // A list is no longer than its place, whatever it counts.
    let count = min(selected[list], params.list_stride - 1u);
    let means = kv_head * params.mean_stride * QUADS + quad0;
    var turn = 0u;
    var listed = 0u;
    var next = 0u;
    while (next < own) {
        var places: array<u32, KEYS>;
        var scores: array<f32, KEYS>;
        var found = 0u;
        for (; found < KEYS && next < own; next++) {
            if (listed < count && selected[list + 1u + listed] == next) {
                listed++;
            } else {
                places[found] = means + next * QUADS;
                found++;
            }
        }
        for (var j = 0u; j < found; j++) {
            var x = 0.0;
            for (var i = 0u; i < OWN; i++) {
                x += dot(query[i], mean_keys[places[j] + i]);
            }
            products[(turn * KEYS + j) * WG + lane] = x;
        }
        workgroupBarrier();
        var grown = top;
        for (var j = 0u; j < found; j++) {
            scores[j] = row_sum((turn * KEYS + j) * WG + lane, lane) + log(f32(BLOCK));
            grown = max(grown, scores[j]);
        }
        turn = 1u - turn;
        let shrink = exp(top - grown);
        top = grown;
        sum *= shrink;
        for (var i = 0u; i < OWN; i++) {
            sums[i] *= shrink;
        }
        for (var j = 0u; j < found; j++) {
            let weight = exp(scores[j] - top);
            sum += weight;
            for (var i = 0u; i < OWN; i++) {
                sums[i] += weight * mean_values[places[j] + i];
            }
        }
    }
    if (mine < first || mine >= end) {
        return;
    }
    for (var i = 0u; i < OWN; i++) {
        let o = sums[i] / sum;
        for (var d = 0u; d < 4u; d++) {
            out[at + i * 4u + d] = o[d];
        }
    }
    if (quad0 == 0u) {
        lse[row * params.num_heads + head] = top + log(sum);
    }
}
