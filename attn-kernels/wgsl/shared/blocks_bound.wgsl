// Score of a block: an upper bound of q . k over its keys (Quest), the largest over the query heads of a set.
#import score_bound
// Query heads that share one read of a digest.
#import HEADS = 1
const LANES: u32 = 8u;
// Quads of channels in flight a lane.
const AHEAD: u32 = 4u;

var<workgroup> q_tile: array<vec4<f32>, HEADS * QUADS>;
var<workgroup> parts: array<array<f32, HEADS>, WG>;

// The score for set `which`, in the first of the block's lanes. Every lane of the workgroup calls it.
fn score_of(row: vec4<u32>, block: u32, in_range: bool, which: u32, lane: u32) -> f32 {
    var total = LOWEST;
    for (var first = 0u; first < params.heads_a_set; first += HEADS) {
        let head = which * params.heads_a_set + first;
        workgroupBarrier();
        for (var i = lane; i < HEADS * QUADS; i += WG) {
            let at = row.x * params.q_stride + head * HEAD_DIM + i * 4u;
            q_tile[i] = vec4(q[at], q[at + 1u], q[at + 2u], q[at + 3u]);
        }
        workgroupBarrier();
        if (in_range) {
            parts[lane] = terms(row, block, head / (params.num_heads / params.num_kv_heads), lane % LANES);
        }
        workgroupBarrier();
        if (in_range && lane % LANES == 0u) {
            for (var h = 0u; h < HEADS; h++) {
                var score = parts[lane][h];
                for (var i = 1u; i < LANES; i++) {
                    score += parts[lane + i][h];
                }
                total = max(total, score);
            }
        }
    }
    return total;
}

// One lane's share of the scores of HEADS query heads: every LANES-th quad of channels.
fn terms(row: vec4<u32>, block: u32, kv_head: u32, lane: u32) -> array<f32, HEADS> {
    let pages = pages_of(row, block);
    var sums: array<f32, HEADS>;
    for (var first = lane; first < QUADS; first += LANES * AHEAD) {
        var joined: array<Digest, AHEAD>;
        for (var page = 0u; page < pages; page++) {
            let physical = tables[row.z + block * PAGES + page];
            let at = (physical * params.num_kv_heads + kv_head) * VECTORS * QUADS;
            for (var a = 0u; a < AHEAD; a++) {
                // Past the last quad it is read again and counts for nothing.
                let one = digest_load(at + min(first + a * LANES, QUADS - 1u), QUADS);
                if (page == 0u) {
                    joined[a] = one;
                } else {
                    joined[a] = digest_join(joined[a], one);
                }
            }
        }
        for (var a = 0u; a < AHEAD; a++) {
            let quad = first + a * LANES;
            for (var h = 0u; h < HEADS; h++) {
                let term = digest_term(q_tile[h * QUADS + min(quad, QUADS - 1u)], joined[a]);
                sums[h] += select(0.0, term, quad < QUADS);
            }
        }
    }
    return sums;
}
