// block_score by bounds (Quest) where blocks are single pages, subgroups have LANES lanes or more, and LANES lanes hold a
// digest: eight channels of the minimum and of the maximum each. They add up by shuffles, and a lane has up to AHEAD blocks on
// their way at once. Buffers, grid and bytes moved are those of block_score; scores differ in the last bits.
// CPU reference: src/cpu/block_score.rs
#import numbers
#import HEAD_DIM = 64
#import BLOCK_SIZE = 16
#import digests = digests_f16
#import score_bound
// Query heads that share one read of a digest, up to 4.
#import HEADS = 1
// Blocks on their way to a lane.
#import AHEAD = 4

struct BlockScoreParams {
    num_heads: u32,
    num_kv_heads: u32,
    q_stride: u32,
    heads_per_set: u32,
    score_stride: u32,
    sink_blocks: u32,
    recent_blocks: u32,
    recent_full: u32, // 1: recent_blocks counts full blocks only
    scale: f32,
    infinity: f32, // which WGSL cannot write
    logit_scale: f32, // attention's factor on q . k, for bounds
    rows: u32,
}

@group(0) @binding(0) var<uniform> params: BlockScoreParams;
@group(0) @binding(1) var<storage, read> q: array<f32>;
@group(0) @binding(3) var<storage, read> tables: array<u32>;
@group(0) @binding(4) var<storage, read> rows: array<vec4<u32>>;
@group(0) @binding(5) var<storage, read_write> scores: array<f32>;

const WG: u32 = 128u;
// Blocks of a workgroup, as block_score has.
const BLOCKS: u32 = 32u;
const CHUNKS: u32 = HEAD_DIM / 8u;
const LANES: u32 = CHUNKS;
// Lanes that share a block are a team.
const TEAMS: u32 = WG / LANES;
const TURNS: u32 = BLOCKS / TEAMS;
const TOGETHER: u32 = min(AHEAD, TURNS);
const_assert LANES == 8u || LANES == 16u;
const_assert TURNS % TOGETHER == 0u;
const LARGEST: f32 = 3.4028234e38;

struct Lane {
    @builtin(subgroup_invocation_id) in_subgroup: u32,
    @builtin(subgroup_size) size: u32,
    @builtin(subgroup_id) subgroup: u32,
}

// Parts of the queries above zero, and below.
var<workgroup> q_plus: array<vec4<f32>, HEADS * CHUNKS * 2u>;
var<workgroup> q_minus: array<vec4<f32>, HEADS * CHUNKS * 2u>;

@compute @workgroup_size(WG)
fn block_score_subgroup(@builtin(workgroup_id) group: vec3<u32>, lane: Lane) {
    let row = rows[group.z];
    let place = lane.subgroup * lane.size + lane.in_subgroup;
    let mate = place % LANES;
    let blocks = (row.y + BLOCK_SIZE - 1u) / BLOCK_SIZE;
    // A team's blocks, TEAMS from one to the next: neighbours have neighbours.
    let first_block = group.x * BLOCKS + place / LANES;
    var best: array<f32, TURNS>;
    for (var t = 0u; t < TURNS; t++) {
        best[t] = LOWEST;
    }
    for (var first = 0u; first < params.heads_per_set; first += HEADS) {
        let head = group.y * params.heads_per_set + first;
        let kv_head = head / (params.num_heads / params.num_kv_heads);
        // Before the queries, so that one wait is for both.
        var loaded = load(row.z, first_block, blocks, kv_head, mate);
        workgroupBarrier();
        for (var i = place; i < HEADS * CHUNKS * 2u; i += WG) {
            let at = row.x * params.q_stride + head * HEAD_DIM + i * 4u;
            let x = vec4(q[at], q[at + 1u], q[at + 2u], q[at + 3u]);
            q_plus[i] = max(x, vec4(0.0));
            q_minus[i] = min(x, vec4(0.0));
        }
        workgroupBarrier();
        for (var turn = 0u; turn < TURNS; turn += TOGETHER) {
            var sums: array<vec4<f32>, TOGETHER>;
            for (var t = 0u; t < TOGETHER; t++) {
                sums[t] = bounds_of(digest_of(loaded[t]), mate);
            }
            if (turn + TOGETHER < TURNS) {
                loaded = load(row.z, first_block + (turn + TOGETHER) * TEAMS, blocks, kv_head, mate);
            }
            for (var t = 0u; t < TOGETHER; t++) {
                best[turn + t] = max(best[turn + t], largest_of(sums[t], lane.in_subgroup));
            }
        }
    }
    for (var t = 0u; t < TURNS; t++) {
        let block = first_block + t * TEAMS;
        if (mate == t % LANES && block < params.score_stride) {
            let sets = params.num_heads / params.heads_per_set;
            let at = (group.z * sets + group.y) * params.score_stride + block;
            let score = ranked(best[t] * params.scale, block, blocks, row.y);
            scores[at] = select(-params.infinity, score, block < blocks);
        }
    }
}

// Digests of TOGETHER blocks of a team. The last block stands in for those past the end.
fn load(table: u32, first_block: u32, blocks: u32, kv_head: u32, mate: u32) -> array<Loaded, TOGETHER> {
    var loaded: array<Loaded, TOGETHER>;
    for (var t = 0u; t < TOGETHER; t++) {
        if (blocks > 0u) {
            let physical = tables[table + min(first_block + t * TEAMS, blocks - 1u)];
            let at = (physical * params.num_kv_heads + kv_head) * VECTORS * CHUNKS;
            loaded[t] = digest_load(at + mate, CHUNKS);
        }
    }
    return loaded;
}

// A lane's parts of the bounds of HEADS heads.
fn bounds_of(d: Digest, mate: u32) -> vec4<f32> {
    var sums: vec4<f32>;
    for (var h = 0u; h < HEADS; h++) {
        let at = (h * CHUNKS + mate) * 2u;
        // max(q * min, q * max), of which one factor is zero.
        var bound = q_plus[at] * d.max_low;
        bound = fma(q_plus[at + 1u], d.max_high, bound);
        bound = fma(q_minus[at], d.min_low, bound);
        bound = fma(q_minus[at + 1u], d.min_high, bound);
        sums[h] = (bound.x + bound.y) + (bound.z + bound.w);
    }
    return sums;
}

// The largest of HEADS sums over a team, in all its lanes. Lanes exchange what the other half goes on with, so that five
// shuffles serve four sums over 16 lanes.
fn largest_of(mine: vec4<f32>, lane: u32) -> f32 {
    let upper = (lane & (LANES / 2u)) != 0u;
    let others = subgroupShuffle(select(mine.zw, mine.xy, upper), lane ^ (LANES / 2u));
    let pair = select(mine.xy, mine.zw, upper) + others;
    let odd = (lane & (LANES / 4u)) != 0u;
    let other = subgroupShuffle(select(pair.y, pair.x, odd), lane ^ (LANES / 4u));
    var sum = select(pair.x, pair.y, odd) + other;
    for (var stride = LANES / 8u; stride > 0u; stride /= 2u) {
        sum += subgroupShuffle(sum, lane ^ stride);
    }
    let head = select(0u, 2u, upper) + select(0u, 1u, odd);
    sum = select(LOWEST, sum, head < HEADS);
    sum = max(sum, subgroupShuffle(sum, lane ^ (LANES / 2u)));
    return max(sum, subgroupShuffle(sum, lane ^ (LANES / 4u)));
}

// The block of the last token comes before all, then sinks and recent ones, then all others, however large their scores.
fn ranked(score: f32, block: u32, blocks: u32, len: u32) -> f32 {
    let whole = select(blocks, len / BLOCK_SIZE, params.recent_full == 1u);
    let forced = block < params.sink_blocks || block + params.recent_blocks >= whole;
    return select(select(min(score, -LOWEST), LARGEST, forced), params.infinity, block + 1u == blocks);
}
