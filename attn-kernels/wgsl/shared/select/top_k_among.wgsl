// The k largest of candidates of a row, written in their order. Goes with narrow, an out module, position_of, which tells the
// position of a candidate, ascending, and key_at, the key at a position of a row.
const ITEMS: u32 = 8u;

// Writes what does not hang on scores; whether that is everything, since a row keeps all of its scores or none.
fn needs_no_scores(index: u32, row: vec4<u32>, place: u32) -> bool {
    let count = min(row.y, row.z);
    out_finish(index, count, place);
    let is_whole = count == row.y || count == 0u;
    for (var i = place; is_whole && i < count; i += WG) {
        out_put(index, row.w, i, i);
    }
    return is_whole;
}

// `start` holds all candidates. Every lane of the workgroup calls it.
fn put_largest(index: u32, row: vec4<u32>, list: u32, candidates: u32, start: Cut, lane: Lane) {
    let place = place_of(lane);
    var cut = start;
    while (!is_found(cut)) {
        clear_bins(place);
        for (var i = place; i < candidates; i += WG * ITEMS) {
            // All loads before the first atomic, which would order them.
            var keys: array<u32, ITEMS>;
            for (var a = 0u; a < ITEMS; a++) {
                keys[a] = key_at(row, position_of(list, min(i + a * WG, candidates - 1u)));
            }
            for (var a = 0u; a < ITEMS; a++) {
                if (i + a * WG < candidates) {
                    count_key(keys[a], cut);
                }
            }
        }
        cut = narrowed(cut, lane);
    }
    var above = 0u;
    var equal = 0u;
    for (var tile = 0u; tile < candidates; tile += WG * ITEMS) {
        let first = tile + place * ITEMS;
        var positions: array<u32, ITEMS>;
        var sides: array<u32, ITEMS>;
        for (var i = 0u; i < ITEMS; i++) {
            positions[i] = position_of(list, min(first + i, candidates - 1u));
        }
        for (var i = 0u; i < ITEMS; i++) {
            sides[i] = key_at(row, positions[i]);
        }
        var mine = 0u;
        for (var i = 0u; i < ITEMS; i++) {
            sides[i] = select(0u, side_of(sides[i], cut), first + i < candidates);
            mine += sides[i];
        }
        let sums = scan(mine, lane);
        var a = above + (sums.before & 0xffffu);
        var e = equal + (sums.before >> 16u);
        for (var i = 0u; i < ITEMS; i++) {
            if (sides[i] == 1u || (sides[i] > 1u && e < cut.left)) {
                out_put(index, row.w, a + min(e, cut.left), positions[i]);
            }
            a += sides[i] & 0xffffu;
            e += sides[i] >> 16u;
        }
        above += sums.total & 0xffffu;
        equal += sums.total >> 16u;
    }
}
