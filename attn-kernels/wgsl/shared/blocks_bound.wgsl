// Score of a block: an upper bound of q . k over its keys (Quest), the largest over the query heads of a set.
#import score_bound
// Query heads that share one read of a digest.
#import HEADS = 1
#import bounds = bounds_none
const LANES: u32 = 8u;
// Quads of channels in flight a lane.
const AHEAD: u32 = 4u;
// What f32 may lose of a sum of terms, relative to their sizes: some 40 roundings at 576 channels.
const TERM_ERROR: f32 = 5e-6;

var<workgroup> q_tile: array<vec4<f32>, HEADS * QUADS>;
var<workgroup> parts: array<array<f32, HEADS>, WG>;

// Of each query head: the terms' sum, and that of their sizes where bounds are kept.
struct Sums { score: array<f32, HEADS>, size: array<f32, HEADS> }

// The score for set `which` of row `index`, in the first of the block's lanes. Every lane of the workgroup calls it.
fn score_of(index: u32, row: vec4<u32>, block: u32, in_range: bool, which: u32, lane: u32) -> f32 {
    var total = LOWEST;
    for (var first = 0u; first < params.heads_a_set; first += HEADS) {
        let head = which * params.heads_a_set + first;
        workgroupBarrier();
        for (var i = lane; i < HEADS * QUADS; i += WG) {
            let at = row.x * params.q_stride + head * HEAD_DIM + i * 4u;
            q_tile[i] = vec4(q[at], q[at + 1u], q[at + 2u], q[at + 3u]);
        }
        workgroupBarrier();
        var mine: Sums;
        if (in_range) {
            mine = terms(row, block, head / (params.num_heads / params.num_kv_heads), lane % LANES);
        }
        let of_block = joined(mine.score, lane);
        if (in_range && lane % LANES == 0u) {
            for (var h = 0u; h < HEADS; h++) {
                total = max(total, of_block[h]);
            }
        }
        if (KEEPS_BOUNDS) {
            workgroupBarrier();
            let sizes = joined(mine.size, lane);
            if (in_range && lane % LANES == 0u) {
                let tokens = min(PAGES * BLOCK_SIZE, row.y - block * PAGES * BLOCK_SIZE);
                let at = (index * params.num_heads + head) * params.score_stride + block;
                for (var h = 0u; h < HEADS; h++) {
                    let most = params.logit_scale * (of_block[h] + TERM_ERROR * sizes[h]);
                    keep_bound(at + h * params.score_stride, most + log(f32(tokens)));
                }
            }
        }
    }
    return total;
}

// The sums over a block's lanes, in the first of them.
fn joined(mine: array<f32, HEADS>, lane: u32) -> array<f32, HEADS> {
    parts[lane] = mine;
    workgroupBarrier();
    var sums = mine;
    if (lane % LANES == 0u) {
        for (var i = 1u; i < LANES; i++) {
            for (var h = 0u; h < HEADS; h++) {
                sums[h] += parts[lane + i][h];
            }
        }
    }
    return sums;
}

// One lane's share of the sums of HEADS query heads: every LANES-th quad of channels.
fn terms(row: vec4<u32>, block: u32, kv_head: u32, lane: u32) -> Sums {
    let pages = pages_of(row, block);
    var sums: Sums;
    for (var first = lane; first < QUADS; first += LANES * AHEAD) {
        var whole: array<Digest, AHEAD>;
        for (var page = 0u; page < pages; page++) {
            let physical = tables[row.z + block * PAGES + page];
            let at = (physical * params.num_kv_heads + kv_head) * VECTORS * QUADS;
            for (var a = 0u; a < AHEAD; a++) {
                // Past the last quad it is read again and counts for nothing.
                let one = digest_load(at + min(first + a * LANES, QUADS - 1u), QUADS);
                if (page == 0u) {
                    whole[a] = one;
                } else {
                    whole[a] = digest_join(whole[a], one);
                }
            }
        }
        for (var a = 0u; a < AHEAD; a++) {
            let quad = first + a * LANES;
            for (var h = 0u; h < HEADS; h++) {
                let terms = digest_terms(q_tile[h * QUADS + min(quad, QUADS - 1u)], whole[a]);
                sums.score[h] += select(0.0, dot(terms, vec4(1.0)), quad < QUADS);
                if (KEEPS_BOUNDS) {
                    sums.size[h] += select(0.0, dot(abs(terms), vec4(1.0)), quad < QUADS);
                }
            }
        }
    }
    return sums;
}
