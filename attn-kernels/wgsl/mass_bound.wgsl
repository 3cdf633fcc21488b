// What the blocks that a row's lists drop may hold, from their digests: no key of theirs is read. With u the bound of a
// block's logits and n its tokens, the dropped blocks hold at most D = sum of n * exp(u) of the softmax's numerator, beside
// the kept sum K; the kept share is at least K / (K + D), which mass_merge makes of it.
//   q         rows of q_stride f32, [num_heads, head_dim] from 0
//   digests   [num_blocks, num_kv_heads, 2, head_dim] f32, minima and maxima, from block_digest
//   tables    physical blocks (pages of BLOCK_SIZE tokens)
//   rows      [n] vec4<u32>: row of q, KV length, first entry of its table, 0
//   selected  lists of list_stride u32, [n, num_kv_heads]: count, then that many ascending blocks of PAGES pages
//   stats     [n, num_heads, max_partitions] (max, sum) of the kept logits, from paged_decode
//   shares    [n, num_heads, share_stride] f32 from first_share on, over the largest kept exponential: K, negative where
//             nothing is dropped, and the part of D of every RUN blocks
// LANES lanes share a block. Grid: (share_stride - 1, num_heads, n). Bytes moved: 8 * head_dim a dropped page and KV head, once
// more (from caches) for each query head of it. CPU reference: src/cpu/mass_bound.rs
#import numbers
#import partition_by_keys
#import HEAD_DIM = 64
#import BLOCK_SIZE = 16
#import PAGES = 1
#import score = score_bound

struct MassBoundParams {
    num_heads: u32,
    num_kv_heads: u32,
    q_stride: u32,
    list_stride: u32,
    max_partitions: u32,
    scale: f32,
    first_list: u32, // row whose lists and shares are those of the dispatch's first row
    first_share: u32,
    share_stride: u32,
    pad0: u32,
    pad1: u32,
    pad2: u32,
}

@group(0) @binding(0) var<uniform> params: MassBoundParams;
@group(0) @binding(1) var<storage, read> q: array<f32>;
@group(0) @binding(2) var<storage, read> digests: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> tables: array<u32>;
@group(0) @binding(4) var<storage, read> rows: array<vec4<u32>>;
@group(0) @binding(5) var<storage, read> selected: array<u32>;
@group(0) @binding(6) var<storage, read> stats: array<vec2<f32>>;
@group(0) @binding(7) var<storage, read_write> shares: array<f32>;

const LANES: u32 = 8u;
const WG: u32 = 256u;
const AT_ONCE: u32 = WG / LANES;
const RUN: u32 = 2u * AT_ONCE;
const QUADS: u32 = HEAD_DIM / 4u;
const TOKENS: u32 = PAGES * BLOCK_SIZE;
// What f32 may lose of a logit's bound, relative to the sizes of its terms.
const TERM_ERROR: f32 = 2e-5;
// Exponentials of more would overflow; a block with such a bound leaves no mass certain.
const MOST: f32 = 80.0;

var<workgroup> q_tile: array<vec4<f32>, QUADS>;
var<workgroup> parts: array<f32, WG>;

@compute @workgroup_size(WG)
fn mass_bound(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = rows[group.z];
    let head = group.y;
    let kv_head = head / (params.num_heads / params.num_kv_heads);
    let list = ((params.first_list + group.z) * params.num_kv_heads + kv_head) * params.list_stride;
    let blocks = (row.y + TOKENS - 1u) / TOKENS;
    for (var i = lane; i < QUADS; i += WG) {
        let at = row.x * params.q_stride + head * HEAD_DIM + i * 4u;
        q_tile[i] = vec4(q[at], q[at + 1u], q[at + 2u], q[at + 3u]) * params.scale;
    }
    let stat = (group.z * params.num_heads + head) * params.max_partitions;
    let partitions = kept_partitions(list, row.y, blocks);
    var top = LOWEST;
    for (var p = 0u; p < partitions; p++) {
        top = max(top, stats[stat + p].x);
    }
    workgroupBarrier();
    var dropped = 0.0;
    for (var first = group.x * RUN; first < (group.x + 1u) * RUN; first += AT_ONCE) {
        let block = first + lane / LANES;
        let is_dropped = block < blocks && !is_listed(list, block);
        var mine = 0.0;
        if (is_dropped) {
            mine = bound(row, block, kv_head, lane % LANES);
        }
        parts[lane] = mine;
        workgroupBarrier();
        if (is_dropped && lane % LANES == 0u) {
            var whole = mine;
            for (var i = 1u; i < LANES; i++) {
                whole += parts[lane + i];
            }
            dropped += f32(min(TOKENS, row.y - block * TOKENS)) * exp(min(whole - top, MOST));
        }
        workgroupBarrier();
    }
    parts[lane] = dropped;
    for (var half = WG / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (lane < half) {
            parts[lane] += parts[lane + half];
        }
    }
    if (lane == 0u) {
        let at = params.first_share
            + ((params.first_list + group.z) * params.num_heads + head) * params.share_stride;
        shares[at + 1u + group.x] = parts[0];
        if (group.x == 0u) {
            var kept = 0.0;
            for (var p = 0u; p < partitions; p++) {
                kept += stats[stat + p].y * exp(stats[stat + p].x - top);
            }
            shares[at] = select(-1.0, kept, selected[list] < blocks);
        }
    }
}

// Partitions of the listed keys; only the sequence's last block may be partial.
fn kept_partitions(list: u32, len: u32, blocks: u32) -> u32 {
    let count = selected[list];
    var keys = count * TOKENS;
    if (count > 0u && selected[list + count] + 1u == blocks) {
        keys -= blocks * TOKENS - len;
    }
    let size = partition_of(keys);
    return (keys + size - 1u) / size;
}

// Binary search.
fn is_listed(list: u32, block: u32) -> bool {
    var low = 0u;
    var high = selected[list];
    while (low < high) {
        let middle = (low + high) / 2u;
        if (selected[list + 1u + middle] < block) {
            low = middle + 1u;
        } else {
            high = middle;
        }
    }
    return low < selected[list] && selected[list + 1u + low] == block;
}

// One lane's part of a bound of the block's logits: every LANES-th quad of channels. No logit is larger than their sum.
fn bound(row: vec4<u32>, block: u32, kv_head: u32, lane: u32) -> f32 {
    let pages = min(PAGES, (row.y + BLOCK_SIZE - 1u) / BLOCK_SIZE - block * PAGES);
    var sum = 0.0;
    var size = 0.0;
    for (var quad = lane; quad < QUADS; quad += LANES) {
        var digest: Digest;
        for (var page = 0u; page < pages; page++) {
            let physical = tables[row.z + block * PAGES + page];
            let one = digest_load((physical * params.num_kv_heads + kv_head) * VECTORS * QUADS + quad, QUADS);
            if (page == 0u) {
                digest = one;
            } else {
                digest = digest_join(digest, one);
            }
        }
        let terms = max(q_tile[quad] * digest.least, q_tile[quad] * digest.most);
        sum += dot(terms, vec4(1.0));
        size += dot(abs(terms), vec4(1.0));
    }
    return sum + TERM_ERROR * size;
}
