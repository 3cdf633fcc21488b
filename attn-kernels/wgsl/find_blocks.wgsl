// The fewest key blocks that reach a share of each query block's mass, voted on by the query heads of a KV head.
//   sums        [num_heads, query_blocks, sum_stride] f32 of softmax_block_sum
//   thresholds  [num_heads] f32: share of the mass
//   out         lists [query_blocks, num_kv_heads] of out_stride u32 from list first_list on: count, ascending blocks
// A head takes blocks by descending mass, equal masses by index, until those taken before a block reach the threshold.
// Block 0 is always kept; causal, the query block's own too: both count first, and later ones are not seen.
// Masses are compared in units of 1 / `units`, a power of two: sums of integers do not depend on their order.
// Grid: (query_blocks, num_kv_heads). Bytes moved: 16 * num_heads * blocks a query block, of which caches serve most.
// CPU reference: src/cpu/find_blocks.rs
#import GROUP = 1
#import radix
#import scan = scan_tree
// Lanes of a workgroup.
#import WG = 256

struct FindBlocksParams {
    num_kv_heads: u32,
    query_blocks: u32,
    key_blocks: u32,
    sum_stride: u32,
    current: u32, // key block of the first query block
    causal: u32,
    out_stride: u32,
    first_list: u32,
    votes: u32, // heads that must keep a block
    units: f32,
}

@group(0) @binding(0) var<uniform> params: FindBlocksParams;
@group(0) @binding(1) var<storage, read> sums: array<f32>;
@group(0) @binding(2) var<storage, read> thresholds: array<f32>;
@group(0) @binding(3) var<storage, read_write> out: array<u32>;

const ITEMS: u32 = 4u;

// Keys that a query block sees.
struct View { blocks: u32, own: u32 }

@compute @workgroup_size(WG)
fn find_blocks(@builtin(workgroup_id) group: vec3<u32>, lane: Lane) {
    let own = params.current + group.x;
    let view = View(select(params.key_blocks, min(params.key_blocks, own + 1u), params.causal == 1u), own);
    // The smallest mass that each head takes, and how many blocks of just that mass.
    var cuts: array<Cut, GROUP>;
    for (var h = 0u; h < GROUP; h++) {
        cuts[h] = cut_of(first_of(group, h), thresholds[group.y * GROUP + h], view, lane);
    }
    let list = (params.first_list + group.x * params.num_kv_heads + group.y) * params.out_stride;
    var equal: array<u32, GROUP>;
    var written = 0u;
    for (var tile = 0u; tile < view.blocks; tile += WG * ITEMS) {
        let first = tile + place_of(lane) * ITEMS;
        var votes = array<u32, ITEMS>();
        for (var h = 0u; h < GROUP; h++) {
            var masses: array<u32, ITEMS>;
            var mine = 0u;
            for (var i = 0u; i < ITEMS; i++) {
                if (is_candidate_block(first + i, view)) {
                    masses[i] = mass(first_of(group, h) + first + i);
                    mine += select(0u, 1u, masses[i] == cuts[h].key);
                }
            }
            let before = scan(mine, lane);
            var rank = equal[h] + before.before;
            for (var i = 0u; i < ITEMS; i++) {
                if (is_candidate_block(first + i, view)) {
                    let is_equal = masses[i] == cuts[h].key;
                    votes[i] += select(0u, 1u, masses[i] > cuts[h].key || (is_equal && rank < cuts[h].left));
                    rank += select(0u, 1u, is_equal);
                }
            }
            equal[h] += before.total;
        }
        var kept = 0u;
        for (var i = 0u; i < ITEMS; i++) {
            kept += select(0u, 1u, is_kept(first + i, votes[i], view));
        }
        let before = scan(kept, lane);
        var rank = written + before.before;
        for (var i = 0u; i < ITEMS; i++) {
            if (is_kept(first + i, votes[i], view)) {
                out[list + 1u + rank] = first + i;
                rank++;
            }
        }
        written += before.total;
    }
    if (place_of(lane) == 0u) {
        out[list] = written;
    }
}

fn first_of(group: vec3<u32>, h: u32) -> u32 {
    return ((group.y * GROUP + h) * params.query_blocks + group.x) * params.sum_stride;
}

// No mass at all where a sum is no number or below 0; one that is not a share of anything overflows, and its blocks are any.
fn mass(at: u32) -> u32 {
    let units = sums[at] * params.units + 0.5;
    return select(0u, u32(min(units, 0x1p31f)), units > 0.0);
}

// Whether the block competes: those that count first do not.
fn is_candidate_block(block: u32, view: View) -> bool {
    return block < view.blocks && (params.causal == 0u || (block != 0u && block != view.own));
}

fn is_kept(block: u32, votes: u32, view: View) -> bool {
    let always = block == 0u || (params.causal == 1u && block == view.own);
    return block < view.blocks && (always || votes >= params.votes);
}

// A radix search by mass in place of count. Every lane of the workgroup calls it.
fn cut_of(first: u32, threshold: f32, view: View, lane: Lane) -> Cut {
    let place = place_of(lane);
    var all = 0u;
    var competing = 0u;
    for (var i = place; i < view.blocks; i += WG) {
        let m = mass(first + i);
        all += m;
        competing += select(0u, m, is_candidate_block(i, view));
    }
    let total = scan(all, lane).total;
    let forced = total - scan(competing, lane).total;
    let required = min(u32(ceil(f32(total) * threshold)), total);
    let needed = max(required, forced) - forced;
    var cut = Cut(0u, needed);
    for (var digit = 0u; digit < DIGITS; digit++) {
        for (var i = place; i < BINS; i += WG) {
            atomicStore(&bins[i], 0u);
        }
        workgroupBarrier();
        for (var i = place; i < view.blocks; i += WG) {
            let m = mass(first + i);
            if (is_candidate_block(i, view) && is_candidate(m, cut, digit)) {
                atomicAdd(&bins[digit_of(m, digit)], m);
            }
        }
        cut = refine(cut, digit, lane);
    }
    if (needed == 0u) {
        return Cut(0xffffffffu, 0u);
    }
    return Cut(cut.key, (cut.left + cut.key - 1u) / cut.key);
}
