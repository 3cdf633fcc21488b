// Writes the scores above a cut and the first cut.left of those equal to it, in order. Goes with radix and an out module.
const ITEMS: u32 = 8u;

// How many scores lie above the cut and equal to it.
struct Tally { above: u32, equal: u32 }

// The scores first to end - 1 of a row, after `before` in scores before them. Every lane of the workgroup calls it.
fn write_range(index: u32, row: vec4<u32>, range: vec2<u32>, before: Tally, cut: Cut, lane: Lane) {
    var above = before.above;
    var equal = before.equal;
    for (var tile = range.x; tile < range.y; tile += WG * ITEMS) {
        let first = tile + place_of(lane) * ITEMS;
        var ahead: array<f32, ITEMS>;
        for (var i = 0u; i < ITEMS; i++) {
            ahead[i] = scores[row.x + min(first + i, range.y - 1u)];
        }
        var keys: array<u32, ITEMS>;
        // Keys above the cut, and from bit 16 on those equal to it.
        var mine = 0u;
        for (var i = 0u; i < ITEMS; i++) {
            if (first + i < range.y) {
                keys[i] = order_key(ahead[i]);
                mine += select(0u, 1u, keys[i] > cut.key) + select(0u, 1u << 16u, keys[i] == cut.key);
            }
        }
        let sums = scan(mine, lane);
        var a = above + (sums.before & 0xffffu);
        var e = equal + (sums.before >> 16u);
        for (var i = 0u; i < ITEMS; i++) {
            let is_above = keys[i] > cut.key;
            let is_equal = keys[i] == cut.key && first + i < range.y;
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
