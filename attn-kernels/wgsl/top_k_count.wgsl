// Counts of long rows for top_k_gather, params.chunk scores a workgroup: one dispatch for each of the digits 0, 1 and 2 of the
// radix search, then one with digit 3 that counts what lies above and at the k-th largest key.
//   scores, rows  as of top_k
//   counts   [n, 3, BINS] how often each value of a digit occurs among the keys that share the earlier ones. The first
//            digit's are zero before the first dispatch: a new buffer is, and top_k_gather leaves them so.
//   cuts     [n, 4] (key so far, how many of its keys are selected) before each digit, and at the end
//   tallies  [n, max_chunks] (above, equal) of each chunk, by the dispatch of digit 3
// Grid: (max_chunks, n folded). Bytes moved: 4 * scores a row and dispatch. CPU reference: src/cpu/top_k_count.rs
#import order_key
#import radix
#import count_scores
#import scan = scan_tree

struct TopKCountParams { rows: u32, max_chunks: u32, digit: u32, chunk: u32 }

@group(0) @binding(0) var<uniform> params: TopKCountParams;
@group(0) @binding(1) var<storage, read> scores: array<f32>;
@group(0) @binding(2) var<storage, read> rows: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read_write> counts: array<atomic<u32>>;
@group(0) @binding(4) var<storage, read_write> cuts: array<vec2<u32>>;
@group(0) @binding(5) var<storage, read_write> tallies: array<vec2<u32>>;

const WG: u32 = 256u;

@compute @workgroup_size(WG)
fn top_k_count(@builtin(workgroup_id) group: vec3<u32>, lane: Lane) {
    let index = group.z * 65535u + group.y;
    if (index >= params.rows) {
        return;
    }
    let row = rows[index];
    let first = group.x * params.chunk;
    if (first >= row.y || row.z == 0u || row.z >= row.y) {
        return;
    }
    let place = place_of(lane);
    var cut = Cut(0u, row.z);
    if (params.digit > 0u) {
        let last = params.digit - 1u;
        // All loads before the first store, which would order them.
        var ahead: array<u32, BINS_A_LANE>;
        for (var i = 0u; i < BINS_A_LANE; i++) {
            ahead[i] = atomicLoad(&counts[(index * DIGITS + last) * BINS + i * WG + place]);
        }
        for (var i = 0u; i < BINS_A_LANE; i++) {
            atomicStore(&bins[i * WG + place], ahead[i]);
        }
        let before = cuts[index * 4u + last];
        cut = refine(Cut(before.x, before.y), last, lane);
    }
    if (group.x == 0u) {
        if (place == 0u) {
            cuts[index * 4u + params.digit] = vec2(cut.key, cut.left);
        }
        if (params.digit == 0u) {
            for (var i = BINS + place; i < DIGITS * BINS; i += WG) {
                atomicStore(&counts[index * DIGITS * BINS + i], 0u);
            }
        }
    }
    let end = min(first + params.chunk, row.y);
    if (params.digit == DIGITS) {
        tally(index * params.max_chunks + group.x, row.x + first, row.x + end, cut, lane);
    } else {
        count(index, row.x + first, row.x + end, cut, lane);
    }
}

fn count(index: u32, first: u32, end: u32, cut: Cut, lane: Lane) {
    count_scores(first, end, cut, params.digit, lane);
    workgroupBarrier();
    for (var i = place_of(lane); i < BINS; i += WG) {
        let more = atomicLoad(&bins[i]);
        if (more > 0u) {
            atomicAdd(&counts[(index * DIGITS + params.digit) * BINS + i], more);
        }
    }
}

fn tally(at: u32, first: u32, end: u32, cut: Cut, lane: Lane) {
    // Keys above the cut, and from bit 16 on those equal to it.
    var mine = 0u;
    for (var i = first + place_of(lane); i < end; i += WG * AHEAD) {
        for (var a = 0u; a < AHEAD; a++) {
            let key = order_key(scores[min(i + a * WG, end - 1u)]);
            let found = select(0u, 1u, key > cut.key) + select(0u, 1u << 16u, key == cut.key);
            mine += select(0u, found, i + a * WG < end);
        }
    }
    let total = scan(mine, lane).total;
    if (place_of(lane) == 0u) {
        tallies[at] = vec2(total & 0xffffu, total >> 16u);
    }
}
