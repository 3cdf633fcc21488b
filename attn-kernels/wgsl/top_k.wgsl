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
const ITEMS: u32 = 4u;
const BINS_A_LANE: u32 = BINS / WG;

var<workgroup> bins: array<atomic<u32>, BINS>;
var<workgroup> found: Cut;

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
        cut = refine(row, cut, digit, lane);
    }
    write(index, row, cut, lane);
    out_finish(index, count, place);
}

// Adds one digit to the cut.
fn refine(row: vec4<u32>, cut: Cut, digit: u32, lane: Lane) -> Cut {
    let place = place_of(lane);
    for (var i = place; i < BINS; i += WG) {
        atomicStore(&bins[i], 0u);
    }
    workgroupBarrier();
    for (var i = place; i < row.y; i += WG) {
        let key = order_key(scores[row.x + i]);
        if (is_candidate(key, cut, digit)) {
            atomicAdd(&bins[digit_of(key, digit)], 1u);
        }
    }
    workgroupBarrier();
    // Lanes take bins from the top, so that a prefix sum counts larger keys.
    let top = BINS - 1u - place * BINS_A_LANE;
    var mine = 0u;
    for (var i = 0u; i < BINS_A_LANE; i++) {
        mine += atomicLoad(&bins[top - i]);
    }
    var above = scan(mine, lane).before;
    for (var i = 0u; i < BINS_A_LANE; i++) {
        let count = atomicLoad(&bins[top - i]);
        if (above < cut.left && cut.left <= above + count) {
            found = Cut(cut.key | ((top - i) << digit_shift(digit)), cut.left - above);
        }
        above += count;
    }
    workgroupBarrier();
    let refined = found;
    workgroupBarrier();
    return refined;
}

// Writes what is above the cut and the first cut.left of what is equal to it, in order.
fn write(index: u32, row: vec4<u32>, cut: Cut, lane: Lane) {
    var above = 0u;
    var equal = 0u;
    for (var tile = 0u; tile < row.y; tile += WG * ITEMS) {
        let first = tile + place_of(lane) * ITEMS;
        var keys: array<u32, ITEMS>;
        // Keys above the cut, and from bit 16 on those equal to it.
        var mine = 0u;
        for (var i = 0u; i < ITEMS; i++) {
            if (first + i < row.y) {
                keys[i] = order_key(scores[row.x + first + i]);
                mine += select(0u, 1u, keys[i] > cut.key) + select(0u, 1u << 16u, keys[i] == cut.key);
            }
        }
        let sums = scan(mine, lane);
        var a = above + (sums.before & 0xffffu);
        var e = equal + (sums.before >> 16u);
        for (var i = 0u; i < ITEMS; i++) {
            let is_above = keys[i] > cut.key;
            let is_equal = keys[i] == cut.key && first + i < row.y;
            if (is_above || (is_equal && e < cut.left)) {
                out_put(index, row.w, a + min(e, cut.left), first + i);
            }
            a += select(0u, 1u, is_above);
            e += select(0u, 1u, is_equal);
        }
        above += sums.total & 0xffffu;
        equal += sums.total >> 16u;
    }
}
