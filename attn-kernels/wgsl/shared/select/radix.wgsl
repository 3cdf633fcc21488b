// Radix search for the k-th largest order key, from the top in digits of 11, 11 and 10 bits. Goes with a scan module, and
// WG lanes a workgroup.
const DIGITS: u32 = 3u;
const BINS: u32 = 2048u;
const BINS_PER_LANE: u32 = BINS / WG;

// Digits of the k-th largest key so far, and the number of keys with those digits that are among the k.
struct Cut { key: u32, left: u32 }

// Number of keys with each value of a digit.
var<workgroup> bins: array<atomic<u32>, BINS>;
var<workgroup> found: Cut;

fn digit_shift(digit: u32) -> u32 {
    return select(select(0u, 10u, digit == 1u), 21u, digit == 0u);
}

fn digit_of(key: u32, digit: u32) -> u32 {
    return (key >> digit_shift(digit)) & select(BINS - 1u, 1023u, digit == 2u);
}

// Whether a key has the digits before `digit` of the cut.
fn is_candidate(key: u32, cut: Cut, digit: u32) -> bool {
    return digit == 0u || (key ^ cut.key) >> digit_shift(digit - 1u) == 0u;
}

// Adds a digit to the cut, from the bins that the workgroup has filled. Every lane of the workgroup calls it.
fn refine(cut: Cut, digit: u32, lane: Lane) -> Cut {
    workgroupBarrier();
    // Lanes take bins from the top, so that a prefix sum counts larger keys.
    let top = BINS - 1u - place_of(lane) * BINS_PER_LANE;
    var counts_of: array<u32, BINS_PER_LANE>;
    var mine = 0u;
    for (var i = 0u; i < BINS_PER_LANE; i++) {
        counts_of[i] = atomicLoad(&bins[top - i]);
        mine += counts_of[i];
    }
    var above = scan(mine, lane).before;
    for (var i = 0u; i < BINS_PER_LANE; i++) {
        if (above < cut.left && cut.left <= above + counts_of[i]) {
            found = Cut(cut.key | ((top - i) << digit_shift(digit)), cut.left - above);
        }
        above += counts_of[i];
    }
    workgroupBarrier();
    let refined = found;
    workgroupBarrier();
    return refined;
}
