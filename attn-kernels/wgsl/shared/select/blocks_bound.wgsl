// Score of a block: an upper bound of q . k over its keys (Quest), the largest over the query heads of a set.
#import score_bound
// Query heads that share one read of a digest.
#import HEADS = 1
#import bounds = bounds_none
// Chunks of channels in flight a lane, of minima and of maxima, at most.
#import MOST_AHEAD = 2
const LANES: u32 = 8u;
const AHEAD: u32 = select(MOST_AHEAD, 1u, CHUNKS <= LANES);
// Rounding error of a sum of terms in f32, relative to their sizes: 160 roundings, some 130 of which a lane of attention
// needs for 512 channels.
const TERM_ERROR: f32 = 1e-5;

var<workgroup> q_tile: array<vec4<f32>, HEADS * CHUNKS * 2u>;
var<workgroup> parts: array<array<f32, HEADS>, WG>;

alias Ahead = array<Loaded, AHEAD>;

// For each query head the sum of the bounds' terms and, where bounds are kept, the sum of the largest sizes of any key's terms.
struct Sums { score: array<f32, HEADS>, size: array<f32, HEADS> }

// The score for set `which` of row `index`, in the first of the block's lanes. Every lane of the workgroup calls it.
fn score_of(index: u32, row: vec4<u32>, block: u32, in_range: bool, which: u32, lane: u32) -> f32 {
    let mate = lane % LANES;
    var best = LOWEST;
    for (var first = 0u; first < params.heads_per_set; first += HEADS) {
        let head = which * params.heads_per_set + first;
        let kv_head = head / (params.num_heads / params.num_kv_heads);
        // Before the queries, so that one wait is for both.
        var ahead: Ahead;
        if (in_range) {
            ahead = load(row, block, 0u, kv_head, mate);
        }
        workgroupBarrier();
        for (var i = lane; i < HEADS * CHUNKS * 2u; i += WG) {
            let at = row.x * params.q_stride + head * HEAD_DIM + i * 4u;
            q_tile[i] = vec4(q[at], q[at + 1u], q[at + 2u], q[at + 3u]);
        }
        workgroupBarrier();
        var mine: Sums;
        if (in_range) {
            mine = terms(row, block, kv_head, mate, ahead);
        }
        let score = joined(mine.score, lane);
        best = max(best, score);
        if (KEEPS_BOUNDS) {
            workgroupBarrier();
            let size = joined(mine.size, lane);
            if (in_range && mate < HEADS) {
                let tokens = min(PAGES * BLOCK_SIZE, row.y - block * PAGES * BLOCK_SIZE);
                let at = (index * params.num_heads + head + mate) * params.score_stride + block;
                let slack = params.logit_scale * (TERM_ERROR * size);
                keep_bound(at, params.logit_scale * score + slack + log(f32(tokens)), slack);
            }
        }
    }
    return joined_best(best, lane);
}

// The sums of a head over a block's lanes, in the lane of its number among them.
fn joined(mine: array<f32, HEADS>, lane: u32) -> f32 {
    parts[lane] = mine;
    workgroupBarrier();
    let mate = lane % LANES;
    var sum = 0.0;
    if (mate < HEADS) {
        for (var i = 0u; i < LANES; i++) {
            sum += parts[lane - mate + i][mate];
        }
    }
    return sum;
}

// The largest of what the lanes of a block's heads have, in the first of them.
fn joined_best(mine: f32, lane: u32) -> f32 {
    var best = mine;
    if (HEADS > 1u) {
        workgroupBarrier();
        parts[lane][0] = mine;
        workgroupBarrier();
        if (lane % LANES == 0u) {
            for (var h = 1u; h < HEADS; h++) {
                best = max(best, parts[lane + h][0]);
            }
        }
    }
    return best;
}

// A page's chunks from `first` on, every LANES-th of them. Past the last one it is read again and counts for nothing.
fn load(row: vec4<u32>, block: u32, page: u32, kv_head: u32, first: u32) -> Ahead {
    let physical = tables[row.z + block * PAGES + page];
    let at = (physical * params.num_kv_heads + kv_head) * VECTORS * CHUNKS;
    var ahead: Ahead;
    for (var a = 0u; a < AHEAD; a++) {
        ahead[a] = digest_load(at + min(first + a * LANES, CHUNKS - 1u), CHUNKS);
    }
    return ahead;
}

// One lane's share of the sums of HEADS query heads: every LANES-th chunk of channels. The first of its first page is loaded.
fn terms(row: vec4<u32>, block: u32, kv_head: u32, lane: u32, loaded: Ahead) -> Sums {
    let pages = pages_of(row, block);
    var sums: Sums;
    var ahead = loaded;
    for (var first = lane; first < CHUNKS; first += LANES * AHEAD) {
        if (first > lane) {
            ahead = load(row, block, 0u, kv_head, first);
        }
        var whole: array<Digest, AHEAD>;
        for (var a = 0u; a < AHEAD; a++) {
            whole[a] = digest_of(ahead[a]);
        }
        for (var page = 1u; page < pages; page++) {
            let more = load(row, block, page, kv_head, first);
            for (var a = 0u; a < AHEAD; a++) {
                whole[a] = digest_join(whole[a], digest_of(more[a]));
            }
        }
        for (var a = 0u; a < AHEAD; a++) {
            if (first + a * LANES < CHUNKS) {
                sums = with_terms(sums, first + a * LANES, whole[a]);
            }
        }
    }
    return sums;
}

fn with_terms(sums: Sums, chunk: u32, digest: Digest) -> Sums {
    var more = sums;
    for (var h = 0u; h < HEADS; h++) {
        let at = (h * CHUNKS + chunk) * 2u;
        let low = terms_of(q_tile[at], digest.min_low, digest.max_low);
        let high = terms_of(q_tile[at + 1u], digest.min_high, digest.max_high);
        more.score[h] += dot(low + high, vec4(1.0));
        if (KEEPS_BOUNDS) {
            let low_size = sizes_of(q_tile[at], digest.min_low, digest.max_low);
            let high_size = sizes_of(q_tile[at + 1u], digest.min_high, digest.max_high);
            more.size[h] += dot(low_size + high_size, vec4(1.0));
        }
    }
    return more;
}
