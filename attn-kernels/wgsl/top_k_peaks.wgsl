// The largest key of each group of 16 scores of long rows, for top_k_long.
//   scores, rows  as of top_k; scores in whole vec4, and groups begin at multiples of 16 of them: a row may begin and end in
//            the middle of one
//   peaks    [n, max_groups] u32 order keys, of rows that have more scores than are selected
// A lane loads QUADS vec4, lanes side by side; four of them make a group, through workgroup memory.
// Grid: (ceil(max_groups / GROUPS), n folded). Bytes moved: 4.25 * scores a row. CPU reference: src/cpu/top_k_peaks.rs
#import order_key

struct TopKPeaksParams { rows: u32, max_groups: u32 }

@group(0) @binding(0) var<uniform> params: TopKPeaksParams;
@group(0) @binding(1) var<storage, read> scores: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> rows: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read_write> peaks: array<u32>;

const WG: u32 = 256u;
const QUADS: u32 = 2u;
const GROUPS: u32 = WG * QUADS / 4u;

var<workgroup> largest: array<u32, WG * QUADS>;

@compute @workgroup_size(WG)
fn top_k_peaks(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let index = group.z * 65535u + group.y;
    if (index >= params.rows) {
        return;
    }
    let row = rows[index];
    let first = (row.x / 16u + group.x * GROUPS) * 4u;
    let end = (row.x + row.y + 3u) / 4u;
    if (first >= end || row.z == 0u || row.z >= row.y) {
        return;
    }
    var quads: array<vec4<f32>, QUADS>;
    for (var i = 0u; i < QUADS; i++) {
        quads[i] = scores[min(first + i * WG + lane, end - 1u)];
    }
    for (var i = 0u; i < QUADS; i++) {
        // Below zero, which is far above, before the row.
        let position = (first + i * WG + lane) * 4u - row.x;
        var most = 0u;
        for (var c = 0u; c < 4u; c++) {
            most = max(most, select(0u, order_key(quads[i][c]), position + c < row.y));
        }
        largest[i * WG + lane] = most;
    }
    workgroupBarrier();
    let to = group.x * GROUPS + lane;
    if (lane < GROUPS && to < (row.x % 16u + row.y + 15u) / 16u) {
        let at = lane * 4u;
        peaks[index * params.max_groups + to] =
            max(max(largest[at], largest[at + 1u]), max(largest[at + 2u], largest[at + 3u]));
    }
}
