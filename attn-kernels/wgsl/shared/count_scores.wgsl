// Counts how often each value of a digit occurs among the scores that are candidates for a cut. Goes with radix.
const AHEAD: u32 = 8u;

// The scores first to end - 1; leaves the counts in `bins`. Every lane of the workgroup calls it.
fn count_scores(first: u32, end: u32, cut: Cut, digit: u32, lane: Lane) {
    for (var i = place_of(lane); i < BINS; i += WG) {
        atomicStore(&bins[i], 0u);
    }
    workgroupBarrier();
    for (var i = first + place_of(lane); i < end; i += WG * AHEAD) {
        // All loads before the first atomic, which would order them.
        var ahead: array<f32, AHEAD>;
        for (var a = 0u; a < AHEAD; a++) {
            ahead[a] = scores[min(i + a * WG, end - 1u)];
        }
        for (var a = 0u; a < AHEAD; a++) {
            let key = order_key(ahead[a]);
            if (i + a * WG < end && is_candidate(key, cut, digit)) {
                atomicAdd(&bins[digit_of(key, digit)], 1u);
            }
        }
    }
}
