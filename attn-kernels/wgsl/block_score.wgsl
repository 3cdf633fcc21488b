// Scores of the blocks of a row's sequence, from digests of its pages.
//   q        rows of q_stride f32, [num_heads, head_dim] from 0
//   digests  [num_blocks, num_kv_heads, VECTORS, head_dim] f32, from block_digest
//   tables   physical blocks (pages of BLOCK_SIZE tokens)
//   rows     [n] vec4<u32>: row of q, KV length, first entry of its table, 0
//   scores   [n, sets, score_stride] f32: +inf for the block of the last token, the largest f32 for the first
//            sink_blocks and the last recent_blocks, -inf beyond the sequence
// A block is PAGES pages, the last one perhaps partial. A set is heads_a_set query heads that share their selection:
// those of a KV head, or all. LANES lanes share a block, neighbours read neighbouring channels.
// Grid: (ceil(score_stride / BLOCKS), sets, n). Bytes moved: 4 * VECTORS * num_kv_heads * head_dim a page of a row, once
// more (from caches) for each HEADS heads. CPU reference: src/cpu/block_score.rs
#import numbers
#import HEAD_DIM = 64
#import BLOCK_SIZE = 16
#import PAGES = 1
// Query heads that share one read of a digest.
#import HEADS = 1
#import score = score_bound

struct BlockScoreParams {
    num_heads: u32,
    num_kv_heads: u32,
    q_stride: u32,
    heads_a_set: u32,
    score_stride: u32,
    sink_blocks: u32,
    recent_blocks: u32,
    recent_full: u32, // 1: recent_blocks counts full blocks only
    scale: f32,
    infinity: f32, // which WGSL cannot write
    pad0: u32,
    pad1: u32,
}

@group(0) @binding(0) var<uniform> params: BlockScoreParams;
@group(0) @binding(1) var<storage, read> q: array<f32>;
@group(0) @binding(2) var<storage, read> digests: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> tables: array<u32>;
@group(0) @binding(4) var<storage, read> rows: array<vec4<u32>>;
@group(0) @binding(5) var<storage, read_write> scores: array<f32>;

const LANES: u32 = 8u;
const BLOCKS: u32 = 32u;
const WG: u32 = LANES * BLOCKS;
const QUADS: u32 = HEAD_DIM / 4u;
// Quads of channels in flight a lane.
const AHEAD: u32 = 4u;
const LARGEST: f32 = 3.4028234e38;

var<workgroup> q_tile: array<vec4<f32>, HEADS * QUADS>;
var<workgroup> parts: array<array<f32, HEADS>, WG>;

@compute @workgroup_size(WG)
fn block_score(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = rows[group.z];
    let block = group.x * BLOCKS + lane / LANES;
    let blocks = (row.y + PAGES * BLOCK_SIZE - 1u) / (PAGES * BLOCK_SIZE);
    let sets = params.num_heads / params.heads_a_set;
    let in_range = block < blocks;
    var total = NO_SCORE;
    for (var first = 0u; first < params.heads_a_set; first += HEADS) {
        let head = group.y * params.heads_a_set + first;
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
                total = score_join(total, score);
            }
        }
    }
    if (lane % LANES == 0u && block < params.score_stride) {
        let at = (group.z * sets + group.y) * params.score_stride + block;
        scores[at] = select(-params.infinity, ranked(total * params.scale, block, blocks, row.y), in_range);
    }
}

// One lane's share of the scores of HEADS query heads: every LANES-th quad of channels.
fn terms(row: vec4<u32>, block: u32, kv_head: u32, lane: u32) -> array<f32, HEADS> {
    let pages = min(PAGES, (row.y + BLOCK_SIZE - 1u) / BLOCK_SIZE - block * PAGES);
    var sums: array<f32, HEADS>;
    for (var first = lane; first < QUADS; first += LANES * AHEAD) {
        var joined: array<Digest, AHEAD>;
        for (var page = 0u; page < pages; page++) {
            let physical = tables[row.z + block * PAGES + page];
            let at = (physical * params.num_kv_heads + kv_head) * VECTORS * QUADS;
            let before = page * BLOCK_SIZE;
            let tokens = min(BLOCK_SIZE, row.y - block * PAGES * BLOCK_SIZE - before);
            let share = f32(tokens) / f32(before + tokens);
            for (var a = 0u; a < AHEAD; a++) {
                // Past the last quad it is read again and counts for nothing.
                let one = digest_load(at + min(first + a * LANES, QUADS - 1u), QUADS);
                if (page == 0u) {
                    joined[a] = one;
                } else {
                    joined[a] = digest_join(joined[a], one, share);
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

// The block of the last token comes before all, then sinks and recent ones.
fn ranked(score: f32, block: u32, blocks: u32, len: u32) -> f32 {
    let whole = select(blocks, len / (PAGES * BLOCK_SIZE), params.recent_full == 1u);
    let forced = block < params.sink_blocks || block + params.recent_blocks >= whole;
    return select(select(score, LARGEST, forced), params.infinity, block + 1u == blocks);
}
