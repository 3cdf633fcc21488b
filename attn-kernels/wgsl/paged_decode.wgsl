// Attention of one query row over its paged KV, one partition of keys a workgroup, GROUP query heads together.
//   q        rows of q_stride f32, [num_heads, head_dim] from 0
//   rows     [n] vec4<u32>: row of q and out, KV length, first entry of its block table, first key that it sees
//   tables   physical block ids: see pages_shared
//   partial  [n, num_heads, max_partitions, head_dim] f32, unnormalised;  stats the same without head_dim: (max, sum)
//   slopes   of ALiBi: see logit_alibi
//   selected lists of blocks, [n, num_kv_heads] from list first_list * num_kv_heads on: see context_blocks
// Partitions go through the keys in the order of `context`, from the one with the first key that the row sees: a row's
// arithmetic depends on its own length, first key and list alone, and a list of all blocks gives the bits of none.
// With one partition and no reduce pass `partial` is the output itself, normalised.
// A dispatch may do a part of the partitions, from first_partition on.
// Grid: (partitions, head groups, n). CPU reference: src/cpu/paged_decode.rs
#import numbers
#import HEAD_DIM = 64
#import BLOCK_SIZE = 16
#import GROUP = 1
#import kv = kv_f16
#import TOKENS_A_LANE = 2
#import partition
#import reduce = reduce_tree
#import pages = pages_shared
#import SELECTED = 8
#import context = context_full
#import SLOPES = 8
#import logit = logit_plain

struct PagedDecodeParams {
    num_heads: u32,
    num_kv_heads: u32,
    q_stride: u32,
    max_partitions: u32,
    scale: f32,
    reduced: u32, // 1: paged_reduce follows
    list_stride: u32,
    first_list: u32,
    softcap: f32,
    first_partition: u32,
    k_scale: f32, // of fp8
    v_scale: f32,
}

@group(0) @binding(0) var<uniform> params: PagedDecodeParams;
@group(0) @binding(1) var<storage, read> q: array<f32>;
@group(0) @binding(4) var<storage, read> tables: array<u32>;
@group(0) @binding(5) var<storage, read> rows: array<vec4<u32>>;
@group(0) @binding(6) var<storage, read_write> partial: array<f32>;
@group(0) @binding(7) var<storage, read_write> stats: array<vec2<f32>>;

const WG: u32 = PARTITION / TOKENS_A_LANE;
// What reductions work on: a value for each head.
const VALUES: u32 = GROUP;
const CHUNKS: u32 = HEAD_DIM / 8u;
// Lanes of one token in the value phase own eight dimensions each; as many tokens as fit go side by side.
const TOKEN_GROUPS: u32 = WG / CHUNKS;
// Values in flight a lane.
const AHEAD: u32 = 8u;

// A partition starts at a block: PARTITION is a multiple of every block size.
var<workgroup> scores: array<f32, PARTITION * GROUP>;
var<workgroup> q_tile: array<vec4<f32>, HEAD_DIM * GROUP / 4u>;
var<workgroup> blocks: array<u32, (PARTITION + BLOCK_SIZE - 1u) / BLOCK_SIZE>;
var<workgroup> merge: array<vec4<f32>, WG * 2u>;

@compute @workgroup_size(WG)
fn paged_decode(@builtin(workgroup_id) group: vec3<u32>, lane: Lane) {
    let row = rows[group.z];
    let head0 = group.y * GROUP;
    let kv_head = head0 / (params.num_heads / params.num_kv_heads);
    let context = context_of((params.first_list + group.z) * params.num_kv_heads + kv_head);
    let begin = context_begin(context, row.w);
    let end = context_end(context, row.y);
    let part = params.first_partition + group.x;
    let first = (begin / PARTITION + part) * PARTITION;
    if (max(first, begin) >= end) {
        // A row without keys is zero; where the reduce pass follows, that writes it.
        if (params.reduced == 0u) {
            for (var i = lane.index; i < HEAD_DIM * GROUP; i += WG) {
                partial[(row.x * params.num_heads + head0) * HEAD_DIM + i] = 0.0;
            }
        }
        return;
    }
    let keys = Keys(max(first, begin) - first, min(end - first, PARTITION));
    for (var i = lane.index; i < HEAD_DIM * GROUP / 4u; i += WG) {
        let at = row.x * params.q_stride + head0 * HEAD_DIM + i * 4u;
        q_tile[i] = vec4(q[at], q[at + 1u], q[at + 2u], q[at + 3u]) * params.scale;
    }
    for (var i = lane.index; i * BLOCK_SIZE < keys.end; i += WG) {
        let block = context_position(context, first + i * BLOCK_SIZE) / BLOCK_SIZE;
        blocks[i] = page_of(row.z + block, kv_head);
    }
    workgroupBarrier();
    let query = Query(context, first, head0, row.y - 1u);
    let stat = softmax(lane, keys, query, scores_of(lane.index, keys));
    let partial_head = (group.z * params.num_heads + head0) * params.max_partitions + part;
    values(lane.index, keys, stat, partial_head, row.x * params.num_heads + head0);
}

// Keys of the partition that count: from begin until before end. No others are read, so unused slots may hold anything.
struct Keys { begin: u32, end: u32 }

struct LaneScores { s: array<array<f32, GROUP>, TOKENS_A_LANE> }

// q[g] . k[t]; a lane owns every WG-th key, so that neighbours read neighbouring chunks.
fn scores_of(lane: u32, keys: Keys) -> LaneScores {
    var at: array<u32, TOKENS_A_LANE>;
    var out: LaneScores;
    for (var t = 0u; t < TOKENS_A_LANE; t++) {
        let key = clamp(lane + t * WG, keys.begin, keys.end - 1u);
        at[t] = k_at(blocks[key / BLOCK_SIZE], 0u, key % BLOCK_SIZE);
    }
    let step = k_at(0u, 1u, 0u);
    for (var chunk = 0u; chunk < CHUNKS; chunk++) {
        var k: array<kv_chunk, TOKENS_A_LANE>;
        for (var t = 0u; t < TOKENS_A_LANE; t++) {
            k[t] = k_load(at[t] + chunk * step);
        }
        for (var g = 0u; g < GROUP; g++) {
            let q_low = q_tile[(g * CHUNKS + chunk) * 2u];
            let q_high = q_tile[(g * CHUNKS + chunk) * 2u + 1u];
            for (var t = 0u; t < TOKENS_A_LANE; t++) {
                out.s[t][g] += dot(q_low, kv_low(k[t])) + dot(q_high, kv_high(k[t]));
            }
        }
    }
    return out;
}

fn counts(key: u32, keys: Keys) -> bool {
    return key >= keys.begin && key < keys.end;
}

// What logits depend on beside the score: where the keys of the partition start, first head, position.
struct Query { context: Context, first: u32, head0: u32, position: u32 }

struct Stat { top: Values, sum: Values }

// Leaves exp(score - max), times what scales the values, in `scores`; returns (max, sum) of each head.
fn softmax(lane: Lane, keys: Keys, query: Query, mine: LaneScores) -> Stat {
    var s = mine;
    var top: Values;
    for (var g = 0u; g < GROUP; g++) {
        top[g] = LOWEST;
        for (var t = 0u; t < TOKENS_A_LANE; t++) {
            let key = clamp(lane.index + t * WG, keys.begin, keys.end - 1u);
            let position = context_position(query.context, query.first + key);
            // A pass of its own over the scores would put them in memory: four times the time on an H200.
            let factor = k_factor(blocks[key / BLOCK_SIZE], key % BLOCK_SIZE);
            let x = logit(s.s[t][g] * factor, 1.0, query.head0 + g, position, query.position);
            s.s[t][g] = select(LOWEST, x, counts(lane.index + t * WG, keys));
            top[g] = max(top[g], s.s[t][g]);
        }
    }
    top = reduce_max(top, lane);
    var sum: Values;
    for (var g = 0u; g < GROUP; g++) {
        for (var t = 0u; t < TOKENS_A_LANE; t++) {
            let key = lane.index + t * WG;
            let p = select(0.0, exp(s.s[t][g] - top[g]), counts(key, keys));
            let at = clamp(key, keys.begin, keys.end - 1u);
            scores[g * PARTITION + key] = p * v_factor(blocks[at / BLOCK_SIZE], at % BLOCK_SIZE);
            sum[g] += p;
        }
    }
    // Its barriers also make all of `scores` visible.
    return Stat(top, reduce_add(sum, lane));
}

// partial[g] = sum of p[g, t] * v[t].
fn values(lane: u32, keys: Keys, stat: Stat, partial_head: u32, out_head: u32) {
    let chunk = lane % CHUNKS;
    let token_group = lane / CHUNKS;
    var low: array<vec4<f32>, GROUP>;
    var high: array<vec4<f32>, GROUP>;
    if (token_group < TOKEN_GROUPS) {
        // The first of the lane's keys that counts. A lower bound on every key would cost 2 % of the kernel.
        let skipped = (keys.begin + TOKEN_GROUPS - 1u - token_group) / TOKEN_GROUPS;
        let start = skipped * TOKEN_GROUPS + token_group;
        for (var first = start; first < keys.end; first += TOKEN_GROUPS * AHEAD) {
            var v: array<kv_chunk, AHEAD>;
            for (var i = 0u; i < AHEAD; i++) {
                // Past the last key its value is read again and has no weight.
                let t = min(first + i * TOKEN_GROUPS, keys.end - 1u);
                v[i] = v_load(v_at(blocks[t / BLOCK_SIZE], chunk, t % BLOCK_SIZE));
            }
            for (var i = 0u; i < AHEAD; i++) {
                let t = first + i * TOKEN_GROUPS;
                for (var g = 0u; g < GROUP; g++) {
                    let p = select(0.0, scores[g * PARTITION + min(t, PARTITION - 1u)], t < keys.end);
                    low[g] = fma(vec4(p), kv_low(v[i]), low[g]);
                    high[g] = fma(vec4(p), kv_high(v[i]), high[g]);
                }
            }
        }
    }
    for (var g = 0u; g < GROUP; g++) {
        merge[lane * 2u] = low[g];
        merge[lane * 2u + 1u] = high[g];
        workgroupBarrier();
        if (lane < CHUNKS * 2u) {
            var sum = vec4(0.0);
            for (var i = 0u; i < TOKEN_GROUPS; i++) {
                sum += merge[i * CHUNKS * 2u + lane];
            }
            store(g, lane, sum, vec2(stat.top[g], stat.sum[g]), partial_head, out_head);
        }
        workgroupBarrier();
    }
}

fn store(g: u32, quad: u32, sum: vec4<f32>, stat: vec2<f32>, partial_head: u32, out_head: u32) {
    var at = (partial_head + g * params.max_partitions) * HEAD_DIM;
    var value = sum;
    if (params.reduced == 0u) {
        at = (out_head + g) * HEAD_DIM;
        value = sum / stat.y;
    }
    for (var i = 0u; i < 4u; i++) {
        partial[at + quad * 4u + i] = value[i];
    }
    if (quad == 0u) {
        stats[partial_head + g * params.max_partitions] = stat;
    }
}
