// Log-sum-exp of the logits of blocks, for a selection that goes on until a mass is certain: of the blocks that the last
// mass_cut added, and of no others is a key read.
//   q       rows of q_stride f32, [num_heads, head_dim] from 0
//   k_cache K layout of the k module
//   tables  physical blocks (pages of BLOCK_SIZE tokens)
//   rows    [n] vec4<u32>: row of q, KV length, first entry of its table, any
//   scores  [n, num_kv_heads, stride] f32 of block_score, which order the blocks
//   cuts    [n, num_kv_heads] vec4<u32> of mass_cut: key and index where the blocks known end, and where those kept do
//   lses    [n, num_heads, stride] f32, natural logarithm
// Lanes are tokens, a block is TOKENS of them. Grid: (ceil(stride / BLOCKS), num_kv_heads, n). Bytes moved: the keys of what was
// added, once for each HEADS query heads of a group, and 4 a block. CPU reference: src/cpu/block_lse.rs
#import numbers
#import order_key
#import HEAD_DIM = 64
#import BLOCK_SIZE = 16
#import PAGES = 1
// Query heads that share one read of a key.
#import HEADS = 1
#import k = k_f16

struct BlockLseParams {
    num_heads: u32,
    num_kv_heads: u32,
    q_stride: u32,
    stride: u32,
    scale: f32,
    first: u32, // 1: of the last block alone, whatever the cuts say
    rows: u32,
}

@group(0) @binding(0) var<uniform> params: BlockLseParams;
@group(0) @binding(1) var<storage, read> q: array<f32>;
@group(0) @binding(3) var<storage, read> tables: array<u32>;
@group(0) @binding(4) var<storage, read> rows: array<vec4<u32>>;
@group(0) @binding(5) var<storage, read> scores: array<f32>;
@group(0) @binding(6) var<storage, read> cuts: array<vec4<u32>>;
@group(0) @binding(7) var<storage, read_write> lses: array<f32>;

const WG: u32 = 256u;
const TOKENS: u32 = PAGES * BLOCK_SIZE;
const BLOCKS: u32 = max(1u, WG / TOKENS);
// Lanes of a block at a time.
const LANES: u32 = WG / BLOCKS;
const QUADS: u32 = HEAD_DIM / 4u;

var<workgroup> q_tile: array<vec4<f32>, HEADS * QUADS>;
var<workgroup> logits: array<f32, HEADS * WG>;
var<workgroup> added: array<u32, BLOCKS>;
var<workgroup> any_added: u32;

@compute @workgroup_size(WG)
fn block_lse(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = rows[group.z];
    let first = group.x * BLOCKS;
    let blocks = (row.y + TOKENS - 1u) / TOKENS;
    if (lane < BLOCKS) {
        added[lane] = select(0u, 1u, first + lane < blocks && is_added(group, first + lane, blocks));
    }
    workgroupBarrier();
    if (lane == 0u) {
        var any = 0u;
        for (var b = 0u; b < BLOCKS; b++) {
            any |= added[b];
        }
        any_added = any;
    }
    if (workgroupUniformLoad(&any_added) == 0u) {
        return;
    }
    let group_heads = params.num_heads / params.num_kv_heads;
    for (var h = 0u; h < group_heads; h += HEADS) {
        sum_heads(group, row, group.y * group_heads + h, lane);
    }
}

fn is_added(group: vec3<u32>, block: u32, blocks: u32) -> bool {
    if (params.first == 1u) {
        return block + 1u == blocks;
    }
    let row_head = group.z * params.num_kv_heads + group.y;
    let key = order_key(scores[row_head * params.stride + block]);
    let cut = cuts[row_head];
    let was_known = key > cut.x || (key == cut.x && block <= cut.y);
    return !was_known && (key > cut.z || (key == cut.z && block <= cut.w));
}

// Scores of HEADS query heads from `head` on. Every lane of the workgroup calls it.
fn sum_heads(group: vec3<u32>, row: vec4<u32>, head: u32, lane: u32) {
    for (var i = lane; i < HEADS * QUADS; i += WG) {
        let at = row.x * params.q_stride + head * HEAD_DIM + i * 4u;
        q_tile[i] = vec4(q[at], q[at + 1u], q[at + 2u], q[at + 3u]);
    }
    workgroupBarrier();
    let block = group.x * BLOCKS + lane / LANES;
    // Each of the first lanes joins one block's sums of one head.
    let joins = lane < BLOCKS * HEADS;
    var top = LOWEST;
    var sum = 0.0;
    for (var tile = 0u; tile < TOKENS; tile += LANES) {
        let offset = tile + lane % LANES;
        let token = block * TOKENS + offset;
        let seen = offset < TOKENS && added[lane / LANES] == 1u && token < row.y;
        put_logits(row, group.y, token, seen, lane);
        workgroupBarrier();
        if (joins) {
            let at = lane % HEADS * WG + lane / HEADS * LANES;
            var largest = top;
            for (var i = 0u; i < LANES; i++) {
                largest = max(largest, logits[at + i]);
            }
            sum *= exp(top - largest);
            for (var i = 0u; i < LANES; i++) {
                sum += exp(logits[at + i] - largest);
            }
            top = largest;
        }
        workgroupBarrier();
    }
    if (joins && added[lane / HEADS] == 1u) {
        let at = (group.z * params.num_heads + head + lane % HEADS) * params.stride;
        lses[at + group.x * BLOCKS + lane / HEADS] = top + log(sum);
    }
    workgroupBarrier();
}

// A lane's logits; LOWEST, of which the exponential is 0, where it has none.
fn put_logits(row: vec4<u32>, kv_head: u32, token: u32, seen: bool, lane: u32) {
    var dots: array<f32, HEADS>;
    var factor = 0.0;
    if (seen) {
        let block_head = tables[row.z + token / BLOCK_SIZE] * params.num_kv_heads + kv_head;
        for (var c = 0u; c < HEAD_DIM / 8u; c++) {
            let key = key_chunk(block_head, c, token % BLOCK_SIZE);
            for (var h = 0u; h < HEADS; h++) {
                let at = h * QUADS + 2u * c;
                dots[h] += dot(q_tile[at], key.low) + dot(q_tile[at + 1u], key.high);
            }
        }
        factor = params.scale * key_scale(block_head, token % BLOCK_SIZE);
    }
    for (var h = 0u; h < HEADS; h++) {
        logits[h * WG + lane] = select(LOWEST, dots[h] * factor, seen);
    }
}
