// Lists that decode rows keep from one step to another.
//   rows   [n] vec4<u32>: slot of the sequence or NONE, blocks of the step that made its list, blocks now, 1 if that is this step
//   kept   [slots, sets] lists of kept_stride u32: count, blocks
//   lists  [n, sets, copies] lists of list_stride u32: count, blocks; the copies of a set are alike
// A row whose list this step has made leaves it in its slot. Any other gets the list of its slot, and the blocks that have begun
// since. A list that does not fit is cut.
// Grid: n * sets folded. Bytes moved: 4 * (1 + copies) an entry. CPU reference: src/cpu/keep_lists.rs
struct KeepListsParams { rows: u32, sets: u32, copies: u32, list_stride: u32, kept_stride: u32 }

@group(0) @binding(0) var<uniform> params: KeepListsParams;
@group(0) @binding(1) var<storage, read> rows: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read_write> kept: array<u32>;
@group(0) @binding(3) var<storage, read_write> lists: array<u32>;

const WG: u32 = 64u;
const NONE: u32 = 0xffffffffu;

@compute @workgroup_size(WG)
fn keep_lists(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let index = group.y * 65535u + group.x;
    if (index >= params.rows * params.sets) {
        return;
    }
    let row = rows[index / params.sets];
    if (row.x == NONE) {
        return;
    }
    let list = index * params.copies * params.list_stride;
    let slot = (row.x * params.sets + index % params.sets) * params.kept_stride;
    let most = min(params.list_stride, params.kept_stride) - 1u;
    if (row.w == 1u) {
        let count = min(lists[list], most);
        for (var i = lane; i < count; i += WG) {
            kept[slot + 1u + i] = lists[list + 1u + i];
        }
        if (lane == 0u) {
            kept[slot] = count;
        }
        return;
    }
    let count = min(kept[slot], most);
    let all = min(count + row.z - row.y, params.list_stride - 1u);
    for (var i = lane; i < all; i += WG) {
        var block = row.y + i - count;
        if (i < count) {
            block = kept[slot + 1u + i];
        }
        for (var copy = 0u; copy < params.copies; copy++) {
            lists[list + copy * params.list_stride + 1u + i] = block;
        }
    }
    if (lane < params.copies) {
        lists[list + lane * params.list_stride] = all;
    }
}
