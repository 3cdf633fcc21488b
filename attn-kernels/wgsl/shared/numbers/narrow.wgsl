// Search for the k-th largest key: counts keys in bins of equal width between two bounds, then in the bin of the k-th, until
// that is one key or taken whole. Goes with a scan module, and WG lanes a workgroup.
const BINS: u32 = 2048u;
const BIN_BITS: u32 = 11u;
const BINS_PER_LANE: u32 = BINS / WG;

// The 2^bits keys from `least` on: `within` scores have one of them, of which `left` are among the k; all above them are.
struct Cut { least: u32, bits: u32, left: u32, within: u32 }

var<workgroup> bins: array<atomic<u32>, BINS>;
var<workgroup> found: vec3<u32>;
var<workgroup> agreed: vec3<u32>;

// Order keys from here on are those of the largest f32 and of infinity.
const FORCED: u32 = 0xff7fffffu;
const INFINITE: u32 = 0xff800000u;

// Least and largest of keys below FORCED, and the number of the others. Those would make the bins between the bounds so wide that
// all other keys shared a few.
struct Extent { least: u32, most: u32, forced: u32 }

const NO_KEYS: Extent = Extent(0xffffffffu, 0u, 0u);

fn with_key(extent: Extent, key: u32) -> Extent {
    let forced = key >= FORCED;
    return Extent(
        select(min(extent.least, key), extent.least, forced),
        select(max(extent.most, key), extent.most, forced),
        extent.forced + select(0u, 1u, forced),
    );
}

// The cut that holds the k-th of `within` keys.
fn first_cut(extent: Extent, k: u32, within: u32) -> Cut {
    if (k <= extent.forced) {
        return cut_between(vec2(FORCED, INFINITE), k, extent.forced);
    }
    let others = cut_between(vec2(extent.least, extent.most), k - extent.forced, within - extent.forced);
    // A power of two of keys may hold forced ones.
    if (side_of(FORCED, others) > 1u) {
        return cut_between(vec2(extent.least, INFINITE), k, within);
    }
    return others;
}

fn cut_between(bounds: vec2<u32>, left: u32, within: u32) -> Cut {
    return Cut(bounds.x, 32u - countLeadingZeros(bounds.y - bounds.x), left, within);
}

fn is_found(cut: Cut) -> bool {
    return cut.bits == 0u || cut.left == cut.within;
}

// Bit 0 for a key above the cut, bit 16 for one in it: sums of up to 65,535 of them stay apart.
fn side_of(key: u32, cut: Cut) -> u32 {
    let past = key - cut.least;
    let in_cut = cut.bits > 31u || past < 1u << cut.bits;
    return select(select(1u, 1u << 16u, in_cut), 0u, key < cut.least);
}

// Joins the extents of the lanes. This and the functions below are called by every lane of the workgroup.
fn extent_of(mine: Extent, lane: Lane) -> Extent {
    let bounds = extremes(mine.least, mine.most, lane);
    let forced = scan(mine.forced, lane).total;
    if (place_of(lane) == 0u) {
        agreed = vec3(bounds, forced);
    }
    let all = workgroupUniformLoad(&agreed);
    return Extent(all.x, all.y, all.z);
}

// A number that all lanes have, as one that the language knows they have.
fn agree(n: u32, place: u32) -> u32 {
    if (place == 0u) {
        agreed.x = n;
    }
    return workgroupUniformLoad(&agreed).x;
}

fn clear_bins(place: u32) {
    for (var i = place; i < BINS; i += WG) {
        atomicStore(&bins[i], 0u);
    }
    workgroupBarrier();
}

// Counts a key if it is in the cut; by any lane.
fn count_key(key: u32, cut: Cut) {
    if (side_of(key, cut) > 1u) {
        atomicAdd(&bins[(key - cut.least) >> (max(cut.bits, BIN_BITS) - BIN_BITS)], 1u);
    }
}

// The cut's bin that has the k-th key, when all keys are counted.
fn narrowed(cut: Cut, lane: Lane) -> Cut {
    workgroupBarrier();
    // Lanes take bins from the top, so that a prefix sum counts larger keys.
    let top = BINS - 1u - place_of(lane) * BINS_PER_LANE;
    var counts: array<u32, BINS_PER_LANE>;
    var mine = 0u;
    for (var i = 0u; i < BINS_PER_LANE; i++) {
        counts[i] = atomicLoad(&bins[top - i]);
        mine += counts[i];
    }
    var above = scan(mine, lane).before;
    for (var i = 0u; i < BINS_PER_LANE; i++) {
        if (above < cut.left && cut.left <= above + counts[i]) {
            found = vec3(top - i, cut.left - above, counts[i]);
        }
        above += counts[i];
    }
    let bin = workgroupUniformLoad(&found);
    let bits = max(cut.bits, BIN_BITS) - BIN_BITS;
    return Cut(cut.least + (bin.x << bits), bits, bin.y, bin.z);
}
