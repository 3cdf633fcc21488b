// The k largest scores of every row, exact; equal scores go to the lower index, NaN counts as -inf.
//   scores  f32, rows anywhere in it
//   rows    [n] vec4<u32>: first score, scores, k, base of the transform
//   table   page table of the paged transform; read by no other
//   out     the out module says what, out_stride u32 a list or row
// One workgroup a row: the least and the largest key, a search for the k-th between them, then one pass that writes what is
// above it, and of the equal ones the first. A row of at most k scores is written whole and not read.
// Grid: n folded. Bytes moved: 16 * scores a row, of which caches serve three quarters, and the output.
// CPU reference: src/cpu/top_k.rs
#import order_key
#import narrow
#import top_k_among
#import transform = transform_none
#import out = out_list
#import scan = scan_tree
// Lanes of a workgroup.
#import WG = 256

struct TopKParams { rows: u32, out_stride: u32, copies: u32, page_size: u32 }

@group(0) @binding(0) var<uniform> params: TopKParams;
@group(0) @binding(1) var<storage, read> scores: array<f32>;
@group(0) @binding(2) var<storage, read> rows: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read> table: array<u32>;
@group(0) @binding(4) var<storage, read_write> out: array<u32>;

@compute @workgroup_size(WG)
fn top_k(@builtin(workgroup_id) group: vec3<u32>, lane: Lane) {
    let index = group.y * 65535u + group.x;
    if (index >= params.rows) {
        return;
    }
    let row = rows[index];
    let place = place_of(lane);
    let count = min(row.y, row.z);
    if (needs_no_scores(index, row, place)) {
        return;
    }
    var mine = NO_KEYS;
    for (var i = place; i < row.y; i += WG * ITEMS) {
        var keys: array<u32, ITEMS>;
        for (var a = 0u; a < ITEMS; a++) {
            keys[a] = key_at(row, min(i + a * WG, row.y - 1u));
        }
        for (var a = 0u; a < ITEMS; a++) {
            if (i + a * WG < row.y) {
                mine = with_key(mine, keys[a]);
            }
        }
    }
    put_largest(index, row, 0u, row.y, first_cut(extent_of(mine, lane), count, row.y), lane);
}

// All scores are candidates.
fn position_of(list: u32, i: u32) -> u32 {
    return i;
}

fn key_at(row: vec4<u32>, position: u32) -> u32 {
    return order_key(scores[row.x + position]);
}
