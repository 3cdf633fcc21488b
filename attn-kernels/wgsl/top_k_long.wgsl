// The k largest scores of long rows, after top_k_peaks. Output and order are those of top_k.
//   scores, rows, table, out  as of top_k_peaks and top_k
//   peaks   [n, max_groups] u32, as top_k_peaks left them
//   chosen  [n, max_chosen] u32 scratch: groups, ascending
//   kept    [n, 16 * max_chosen] u32 scratch: positions, ascending
// The k largest scores lie in the k groups whose peaks are largest, of equal ones the first: every score elsewhere has k others
// before it, one in each of those groups. The least of these peaks is a bound that leaves little more than k scores.
// The search among peaks ends early: up to k / 8 more groups cost less than another pass.
// One workgroup a row. Grid: n folded. Bytes moved: scores / 4 a row, 64 * k, and the output.
// CPU reference: src/cpu/top_k_long.rs
#import order_key
#import narrow
#import top_k_among
#import transform = transform_none
#import out = out_list
#import scan = scan_tree
// Lanes of a workgroup.
#import WG = 256
// Groups of scores in flight a lane.
#import SPANS = 4

struct TopKLongParams {
    rows: u32,
    out_stride: u32,
    copies: u32,
    page_size: u32,
    max_groups: u32, // a multiple of 4
    max_chosen: u32,
}

@group(0) @binding(0) var<uniform> params: TopKLongParams;
@group(0) @binding(1) var<storage, read> scores: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> rows: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read> table: array<u32>;
@group(0) @binding(4) var<storage, read> peaks: array<vec4<u32>>;
@group(0) @binding(5) var<storage, read_write> chosen: array<u32>;
@group(0) @binding(6) var<storage, read_write> kept: array<u32>;
@group(0) @binding(7) var<storage, read_write> out: array<u32>;

const GROUP: u32 = 16u;
// Quads of peaks in flight a lane: 8,192 peaks are one round.
const PEAK_QUADS: u32 = 2048u / WG;

@compute @workgroup_size(WG)
fn top_k_long(@builtin(workgroup_id) group: vec3<u32>, lane: Lane) {
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
    let groups = (row.x % GROUP + row.y + GROUP - 1u) / GROUP;
    let extent = peak_extent(index, groups, lane);
    var cut = first_cut(extent, min(count, groups), groups);
    while (cut.bits > 0u && cut.within - cut.left > count / 8u) {
        cut = narrowed_by_peaks(index, groups, cut, lane);
    }
    if (cut.bits > 0u) {
        cut.left = cut.within;
    }
    let taken = agree(choose(index, groups, cut, lane), place);
    storageBarrier();
    // Fewer peaks than k say nothing about the k-th score.
    let least = select(cut.least, 0u, groups < count);
    var kept_keys = NO_KEYS;
    let candidates = agree(keep(index, row, taken, least, &kept_keys, lane), place);
    storageBarrier();
    let start = first_cut(extent_of(kept_keys, lane), count, candidates);
    put_largest(index, row, index * params.max_chosen * GROUP, candidates, start, lane);
}

fn peak_quad(index: u32, quad: u32, groups: u32) -> vec4<u32> {
    return peaks[index * (params.max_groups / 4u) + min(quad, (groups - 1u) / 4u)];
}

fn peak_extent(index: u32, groups: u32, lane: Lane) -> Extent {
    var mine = NO_KEYS;
    for (var quad = place_of(lane); quad < (groups + 3u) / 4u; quad += WG * PEAK_QUADS) {
        for (var a = 0u; a < PEAK_QUADS; a++) {
            let keys = peak_quad(index, quad + a * WG, groups);
            // The last quad may have groups of no row.
            let first = min(quad + a * WG, (groups - 1u) / 4u) * 4u;
            for (var c = 0u; c < 4u; c++) {
                if (quad + a * WG == first / 4u && first + c < groups) {
                    mine = with_key(mine, keys[c]);
                }
            }
        }
    }
    return extent_of(mine, lane);
}

fn narrowed_by_peaks(index: u32, groups: u32, cut: Cut, lane: Lane) -> Cut {
    clear_bins(place_of(lane));
    for (var quad = place_of(lane); quad < (groups + 3u) / 4u; quad += WG * PEAK_QUADS) {
        var keys: array<vec4<u32>, PEAK_QUADS>;
        for (var a = 0u; a < PEAK_QUADS; a++) {
            keys[a] = peak_quad(index, quad + a * WG, groups);
        }
        for (var a = 0u; a < PEAK_QUADS; a++) {
            for (var c = 0u; c < 4u; c++) {
                if ((quad + a * WG) * 4u + c < groups) {
                    count_key(keys[a][c], cut);
                }
            }
        }
    }
    return narrowed(cut, lane);
}

// Lists the groups above the cut and the first cut.left of those in it; returns how many.
fn choose(index: u32, groups: u32, cut: Cut, lane: Lane) -> u32 {
    var above = 0u;
    var equal = 0u;
    for (var tile = 0u; tile < groups; tile += WG * PEAK_QUADS * 4u) {
        let first = tile + place_of(lane) * PEAK_QUADS * 4u;
        var keys: array<vec4<u32>, PEAK_QUADS>;
        for (var a = 0u; a < PEAK_QUADS; a++) {
            keys[a] = peak_quad(index, first / 4u + a, groups);
        }
        // A bit for each group above the cut, and in it.
        var is_above = 0u;
        var is_equal = 0u;
        for (var a = 0u; a < PEAK_QUADS; a++) {
            for (var c = 0u; c < 4u; c++) {
                let i = a * 4u + c;
                let side = select(0u, side_of(keys[a][c], cut), first + i < groups);
                is_above |= (side & 1u) << i;
                is_equal |= (side >> 16u) << i;
            }
        }
        let sums = scan(countOneBits(is_above) | (countOneBits(is_equal) << 16u), lane);
        var to = above + (sums.before & 0xffffu);
        var e = equal + (sums.before >> 16u);
        for (var bits = is_above | is_equal; bits > 0u; bits &= bits - 1u) {
            let i = countTrailingZeros(bits);
            let is_in_cut = (is_equal >> i) & 1u;
            if (is_in_cut == 0u || e < cut.left) {
                chosen[index * params.max_chosen + to + min(e, cut.left)] = first + i;
            }
            e += is_in_cut;
            to += 1u - is_in_cut;
        }
        above += sums.total & 0xffffu;
        equal += sums.total >> 16u;
    }
    return above + min(equal, cut.left);
}

// Lists the positions of the chosen groups whose keys are at least `least`, and adds the lane's own to `keys`; returns how many.
fn keep(index: u32, row: vec4<u32>, taken: u32, least: u32, keys: ptr<function, Extent>, lane: Lane) -> u32 {
    let end = (row.x + row.y + 3u) / 4u;
    var total = 0u;
    for (var tile = 0u; tile < taken; tile += WG * SPANS) {
        var quads: array<u32, SPANS>;
        for (var s = 0u; s < SPANS; s++) {
            let i = tile + place_of(lane) * SPANS + s;
            let group = chosen[index * params.max_chosen + min(i, taken - 1u)];
            // A quad behind the row for what is behind the list.
            quads[s] = select(end, (row.x / GROUP + group) * 4u, i < taken);
        }
        var loaded: array<vec4<f32>, SPANS * 4u>;
        for (var i = 0u; i < SPANS * 4u; i++) {
            loaded[i] = scores[min(quads[i / 4u] + i % 4u, end - 1u)];
        }
        // A bit for each score.
        var bits = array<u32, SPANS>();
        var mine = 0u;
        for (var i = 0u; i < SPANS * 4u; i++) {
            for (var c = 0u; c < 4u; c++) {
                let position = (quads[i / 4u] + i % 4u) * 4u + c - row.x;
                let key = order_key(loaded[i][c]);
                let is_kept = position < row.y && key >= least;
                bits[i / 4u] |= select(0u, 1u, is_kept) << (i % 4u * 4u + c);
                if (is_kept) {
                    *keys = with_key(*keys, key);
                }
            }
        }
        for (var s = 0u; s < SPANS; s++) {
            mine += countOneBits(bits[s]);
        }
        let sums = scan(mine, lane);
        var to = index * params.max_chosen * GROUP + total + sums.before;
        #unroll s < SPANS
            for (var rest = bits[s]; rest > 0u; rest &= rest - 1u) {
                kept[to] = quads[s] * 4u + countTrailingZeros(rest) - row.x;
                to++;
            }
        #end
        total += sums.total;
    }
    return total;
}

fn position_of(list: u32, i: u32) -> u32 {
    return kept[list + i];
}

fn key_at(row: vec4<u32>, position: u32) -> u32 {
    let at = row.x + position;
    return order_key(scores[at / 4u][at % 4u]);
}
