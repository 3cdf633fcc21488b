// The k largest scores of every row, exact; equal scores go to the lower index, NaN counts as -inf.
//   scores  f32, rows anywhere in it
//   rows    [n] vec4<u32>: first score, scores, k, base of the transform
//   table   page table of the paged transform; read by no other
//   out     the out module says what, out_stride u32 a list or row
// One workgroup a row: a radix search for the k-th largest key, then one pass that writes what is above it, and of the
// equal ones the first. A row of at most k scores is written whole and not read.
// Grid: n folded. Bytes moved: 16 * scores a row, of which caches serve three quarters, and the output.
// CPU reference: src/cpu/top_k.rs
#import order_key
#import radix
#import count_scores
#import top_k_write
#import transform = transform_none
#import out = out_list
#import scan = scan_tree

struct TopKParams { rows: u32, out_stride: u32, copies: u32, page_size: u32 }

@group(0) @binding(0) var<uniform> params: TopKParams;
@group(0) @binding(1) var<storage, read> scores: array<f32>;
@group(0) @binding(2) var<storage, read> rows: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read> table: array<u32>;
@group(0) @binding(4) var<storage, read_write> out: array<u32>;

const WG: u32 = 256u;

@compute @workgroup_size(WG)
fn top_k(@builtin(workgroup_id) group: vec3<u32>, lane: Lane) {
    let index = group.y * 65535u + group.x;
    if (index >= params.rows) {
        return;
    }
    let row = rows[index];
    let place = place_of(lane);
    let count = min(row.y, row.z);
    if (count == row.y || count == 0u) {
        for (var i = place; i < count; i += WG) {
            out_put(index, row.w, i, i);
        }
        out_finish(index, count, place);
        return;
    }
    var cut = Cut(0u, row.z);
    for (var digit = 0u; digit < DIGITS; digit++) {
        count_scores(row.x, row.x + row.y, cut, digit, lane);
        cut = refine(cut, digit, lane);
    }
    write_range(index, row, vec2(0u, row.y), Tally(0u, 0u), cut, lane);
    out_finish(index, count, place);
}
