// Bound of the mass of the blocks that a row's lists drop, from the bounds that block_score kept: with u the bound of a block's
// logits and n its tokens, the dropped blocks hold at most D = sum of n * exp(u) of the softmax's numerator, beside the kept
// sum K; the kept share is at least K / (K + D), which mass_merge makes of it. Neither keys nor digests are read.
//   bounds    [lists' rows, num_heads, bound_stride] vec2<f32>: log(n) + u of every block, and what f32 may lose of a logit in it
//   rows      [first_row + n] vec4<u32>: any, KV length, any, any
//   selected  lists of list_stride u32, [lists' rows, num_kv_heads]: count, then that many ascending blocks
//   stats     [n, num_heads, max_partitions] (max, sum) of the kept logits, from paged_decode
//   shares    [lists' rows, num_heads, share_stride] f32 from first_share on, over the largest kept exponential: K, negative
//             where nothing is dropped, and the part of D of every RUN blocks
// Grid: (share_stride - 1, num_heads, n). Bytes moved: 4 a block and query head, the lists and the stats once for each RUN
// blocks. CPU reference: src/cpu/mass_bound.rs
#import numbers
#import reduce_tree

struct MassBoundParams {
    num_heads: u32,
    num_kv_heads: u32,
    select_block: u32, // tokens of a block
    list_stride: u32,
    max_partitions: u32,
    bound_stride: u32,
    first_row: u32, // of the dispatch
    first_share: u32,
    share_stride: u32,
    partition_size: u32, // in keys
    slack: f32, // how much more than f32 what computed the stats may lose of a logit
    rows: u32,
}

@group(0) @binding(0) var<uniform> params: MassBoundParams;
@group(0) @binding(1) var<storage, read> bounds: array<vec2<f32>>;
@group(0) @binding(2) var<storage, read> rows: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read> selected: array<u32>;
@group(0) @binding(4) var<storage, read> stats: array<vec2<f32>>;
@group(0) @binding(5) var<storage, read_write> shares: array<f32>;

const WG: u32 = 64u;
const VALUES: u32 = 1u;
const RUN: u32 = 16u * WG;
// Exponentials of more would overflow, and so would sums of more than LARGEST; with either no mass is certain.
const MAX_EXPONENT: f32 = 80.0;
const LARGEST: f32 = 1e36;

// 1 for the listed blocks of the run.
var<workgroup> listed: array<u32, RUN>;

@compute @workgroup_size(WG)
fn mass_bound(@builtin(workgroup_id) group: vec3<u32>, lane: Lane) {
    let row = params.first_row + group.z;
    let head = group.y;
    let len = rows[row].y;
    let blocks = (len + params.select_block - 1u) / params.select_block;
    let kv_head = head / (params.num_heads / params.num_kv_heads);
    let list = (row * params.num_kv_heads + kv_head) * params.list_stride;
    let stat = (group.z * params.num_heads + head) * params.max_partitions;
    let partitions = kept_partitions(list, len, blocks);
    var top = LOWEST;
    for (var p = lane.index; p < partitions; p += WG) {
        top = max(top, stats[stat + p].x);
    }
    top = reduce_max(Values(top), lane)[0];

    mark_listed(list, group.x * RUN, lane.index);
    let first_bound = (row * params.num_heads + head) * params.bound_stride;
    let bound = first_bound + group.x * RUN;
    var dropped = 0.0;
    for (var i = lane.index; i < min(RUN, blocks - min(blocks, group.x * RUN)); i += WG) {
        if (listed[i] == 0u) {
            dropped += exp(min(bounds[bound + i].x - top, MAX_EXPONENT));
        }
    }
    let share = params.first_share + (row * params.num_heads + head) * params.share_stride;
    dropped = reduce_add(Values(dropped), lane)[0];
    if (lane.index == 0u) {
        shares[share + 1u + group.x] = min(dropped, LARGEST);
    }
    if (group.x == 0u) {
        var kept = 0.0;
        for (var p = lane.index; p < partitions; p += WG) {
            kept += stats[stat + p].y * exp(stats[stat + p].x - top);
        }
        kept = reduce_add(Values(kept), lane)[0];
        // Rounding has made no kept logit larger by more than this.
        var lost = 0.0;
        for (var i = lane.index; i < selected[list]; i += WG) {
            lost = max(lost, bounds[first_bound + selected[list + 1u + i]].y);
        }
        lost = reduce_max(Values(lost), lane)[0] * params.slack;
        kept = select(0.0, kept * exp(-lost), lost < MAX_EXPONENT);
        if (lane.index == 0u) {
            shares[share] = select(-1.0, kept, selected[list] < blocks);
        }
    }
}

// Partitions of the listed keys; only the sequence's last block may be partial.
fn kept_partitions(list: u32, len: u32, blocks: u32) -> u32 {
    let count = selected[list];
    var keys = count * params.select_block;
    if (count > 0u && selected[list + count] + 1u == blocks) {
        keys -= blocks * params.select_block - len;
    }
    return (keys + params.partition_size - 1u) / params.partition_size;
}

// Marks the listed ones of the RUN blocks from `first` on. Every lane of the workgroup calls it.
fn mark_listed(list: u32, first: u32, lane: u32) {
    for (var i = lane; i < RUN; i += WG) {
        listed[i] = 0u;
    }
    workgroupBarrier();
    // Binary search for where the run begins in the list.
    var low = 0u;
    var high = selected[list];
    while (low < high) {
        let middle = (low + high) / 2u;
        if (selected[list + 1u + middle] < first) {
            low = middle + 1u;
        } else {
            high = middle;
        }
    }
    let end = min(selected[list], low + RUN);
    for (var i = low + lane; i < end; i += WG) {
        let place = selected[list + 1u + i] - first;
        if (place < RUN) {
            listed[place] = 1u;
        }
    }
    workgroupBarrier();
}
