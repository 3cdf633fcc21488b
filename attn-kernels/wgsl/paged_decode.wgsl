// Attention of one query row over its paged KV, one partition of 512 keys a workgroup, GROUP query heads together.
//   q        rows of q_stride f32, [num_heads, head_dim] from 0
//   rows     [n] vec4<u32>: row of q and out, KV length, first entry of its block table, 0
//   tables   physical block ids
//   partial  [n, num_heads, max_partitions, head_dim] f32, unnormalised;  stats the same without head_dim: (max, sum)
// With one partition `partial` is the output itself, normalised, and the reduce pass is not needed. A row's arithmetic
// depends on its own length alone.
// Grid: (max_partitions, head groups, n). CPU reference: src/cpu/paged_decode.rs
#import numbers
#import HEAD_DIM = 64
#import BLOCK_SIZE = 16
#import GROUP = 1
#import kv = kv_f16
#import TOKENS_A_LANE = 4

struct PagedDecodeParams {
    num_heads: u32,
    num_kv_heads: u32,
    q_stride: u32,
    max_partitions: u32,
    scale: f32,
    neg_inf: f32,
    pad0: u32,
    pad1: u32,
}

@group(0) @binding(0) var<uniform> params: PagedDecodeParams;
@group(0) @binding(1) var<storage, read> q: array<f32>;
@group(0) @binding(4) var<storage, read> tables: array<u32>;
@group(0) @binding(5) var<storage, read> rows: array<vec4<u32>>;
@group(0) @binding(6) var<storage, read_write> partial: array<f32>;
@group(0) @binding(7) var<storage, read_write> stats: array<vec2<f32>>;

const PARTITION: u32 = 512u;
const WG: u32 = PARTITION / TOKENS_A_LANE;
const CHUNKS: u32 = HEAD_DIM / 8u;
// Lanes of one token in the value phase own eight dimensions each; as many tokens as fit go side by side.
const TOKEN_GROUPS: u32 = WG / CHUNKS;

var<workgroup> scores: array<f32, PARTITION * GROUP>;
var<workgroup> q_tile: array<f32, HEAD_DIM * GROUP>;
var<workgroup> merge: array<vec4<f32>, WG * 2u>;

@compute @workgroup_size(WG)
fn paged_decode(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = rows[group.z];
    let first = group.x * PARTITION;
    let head0 = group.y * GROUP;
    if (first >= row.y) {
        // A row without keys is zero; with more partitions the reduce pass writes it.
        if (params.max_partitions == 1u) {
            for (var i = lane; i < HEAD_DIM * GROUP; i += WG) {
                partial[(row.x * params.num_heads + head0) * HEAD_DIM + i] = 0.0;
            }
        }
        return;
    }
    let keys = min(row.y - first, PARTITION);
    let kv_head = head0 / (params.num_heads / params.num_kv_heads);
    for (var i = lane; i < HEAD_DIM * GROUP; i += WG) {
        q_tile[i] = q[row.x * params.q_stride + head0 * HEAD_DIM + i] * params.scale;
    }
    workgroupBarrier();
    score(lane, keys, row.z, first, kv_head);
    workgroupBarrier();
    for (var g = 0u; g < GROUP; g++) {
        softmax(lane, g, keys);
    }
    values(lane, keys, row.z, first, kv_head, (group.z * params.num_heads + head0) * params.max_partitions + group.x, row.x * params.num_heads + head0);
}

// scores[g, t] = q[g] . k[t]; a lane owns every WG-th key, so that neighbours read neighbouring chunks.
fn score(lane: u32, keys: u32, table: u32, first: u32, kv_head: u32) {
    var at: array<u32, TOKENS_A_LANE>;
    var s: array<array<f32, GROUP>, TOKENS_A_LANE>;
    for (var t = 0u; t < TOKENS_A_LANE; t++) {
        let key = first + min(lane + t * WG, keys - 1u);
        let block = tables[table + key / BLOCK_SIZE];
        at[t] = k_at(block * params.num_kv_heads + kv_head, 0u, key % BLOCK_SIZE);
    }
    let step = k_at(0u, 1u, 0u);
    for (var chunk = 0u; chunk < CHUNKS; chunk++) {
        var k: array<kv_chunk, TOKENS_A_LANE>;
        for (var t = 0u; t < TOKENS_A_LANE; t++) {
            k[t] = k_load(at[t] + chunk * step);
        }
        for (var g = 0u; g < GROUP; g++) {
            let o = g * HEAD_DIM + chunk * 8u;
            let q_low = vec4(q_tile[o], q_tile[o + 1u], q_tile[o + 2u], q_tile[o + 3u]);
            let q_high = vec4(q_tile[o + 4u], q_tile[o + 5u], q_tile[o + 6u], q_tile[o + 7u]);
            for (var t = 0u; t < TOKENS_A_LANE; t++) {
                s[t][g] += dot(q_low, kv_low(k[t])) + dot(q_high, kv_high(k[t]));
            }
        }
    }
    for (var t = 0u; t < TOKENS_A_LANE; t++) {
        let key = lane + t * WG;
        for (var g = 0u; g < GROUP; g++) {
            scores[g * PARTITION + key] = select(LOWEST, s[t][g], key < keys);
        }
    }
}

var<workgroup> stat: array<vec2<f32>, GROUP>;
var<workgroup> lanes: array<f32, WG>;

// Turns the scores of head g into exp(score - max) and leaves (max, sum) in stat[g].
fn softmax(lane: u32, g: u32, keys: u32) {
    var top = LOWEST;
    for (var t = lane; t < PARTITION; t += WG) {
        top = max(top, scores[g * PARTITION + t]);
    }
    lanes[lane] = top;
    for (var half = WG / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (lane < half) {
            lanes[lane] = max(lanes[lane], lanes[lane + half]);
        }
    }
    workgroupBarrier();
    top = lanes[0];
    workgroupBarrier();
    var sum = 0.0;
    for (var t = lane; t < PARTITION; t += WG) {
        let p = select(0.0, exp(scores[g * PARTITION + t] - top), t < keys);
        scores[g * PARTITION + t] = p;
        sum += p;
    }
    lanes[lane] = sum;
    for (var half = WG / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (lane < half) {
            lanes[lane] += lanes[lane + half];
        }
    }
    workgroupBarrier();
    if (lane == 0u) {
        stat[g] = vec2(top, lanes[0]);
    }
    workgroupBarrier();
}

// partial[g] = sum of p[g, t] * v[t]; only keys inside the sequence are read, so unused slots may hold anything.
fn values(lane: u32, keys: u32, table: u32, first: u32, kv_head: u32, partial_head: u32, out_head: u32) {
    let chunk = lane % CHUNKS;
    let token_group = lane / CHUNKS;
    var low: array<vec4<f32>, GROUP>;
    var high: array<vec4<f32>, GROUP>;
    if (token_group < TOKEN_GROUPS) {
        for (var t = token_group; t < keys; t += TOKEN_GROUPS) {
            let key = first + t;
            let block = tables[table + key / BLOCK_SIZE];
            let v = v_load(v_at(block * params.num_kv_heads + kv_head, chunk, key % BLOCK_SIZE));
            let v_low = kv_low(v);
            let v_high = kv_high(v);
            for (var g = 0u; g < GROUP; g++) {
                let p = scores[g * PARTITION + t];
                low[g] = fma(vec4(p), v_low, low[g]);
                high[g] = fma(vec4(p), v_high, high[g]);
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
            store(g, lane, sum, partial_head, out_head);
        }
        workgroupBarrier();
    }
}

fn store(g: u32, quad: u32, sum: vec4<f32>, partial_head: u32, out_head: u32) {
    var at = (partial_head + g * params.max_partitions) * HEAD_DIM;
    var value = sum;
    if (params.max_partitions == 1u) {
        at = (out_head + g) * HEAD_DIM;
        value = sum / stat[g].y;
    }
    for (var i = 0u; i < 4u; i++) {
        partial[at + quad * 4u + i] = value[i];
    }
    if (quad == 0u) {
        stats[partial_head + g * params.max_partitions] = stat[g];
    }
}
