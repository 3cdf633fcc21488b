// Scores of the blocks of a row's sequence, from digests of its pages.
//   q        rows of q_stride f32, [num_heads, head_dim] from 0
//   digests  [num_blocks, num_kv_heads, VECTORS, head_dim], from block_digest: f32 beside caches in f32, else f16
//   tables   physical blocks (pages of BLOCK_SIZE tokens)
//   rows     [n] vec4<u32>: row of q, KV length, first entry of its table, 0
//   scores   [n, sets, score_stride] f32: +inf for the block of the last token, the largest f32 for the first
//            sink_blocks and the last recent_blocks, -inf beyond the sequence
//   bounds   with bounds_kept, [n, num_heads, score_stride] vec2<f32>: logarithm of what the sum of a block's e^logit is at most,
//            and what f32 may lose of a logit in the block
// A block is PAGES pages, the last one perhaps partial. A set is heads_per_set query heads that share their selection:
// those of a KV head, or all. LANES lanes share a block, neighbours read neighbouring channels.
// Grid: (ceil(score_stride / BLOCKS), sets, n). Bytes moved: VECTORS * num_kv_heads * head_dim * (4 or 2) a page of a row, of
// bounds once more (from caches) for each HEADS heads; 4 * num_heads a block for bounds. CPU reference: src/cpu/block_score.rs
#import numbers
#import HEAD_DIM = 64
#import BLOCK_SIZE = 16
#import PAGES = 1
#import digests = digests_f16
#import scoring = blocks_bound

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

const WG: u32 = 256u;
const BLOCKS: u32 = WG / LANES;
const CHUNKS: u32 = HEAD_DIM / 8u;
const LARGEST: f32 = 3.4028234e38;

@compute @workgroup_size(WG)
fn block_score(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = rows[group.z];
    let block = group.x * BLOCKS + lane / LANES;
    let blocks = (row.y + PAGES * BLOCK_SIZE - 1u) / (PAGES * BLOCK_SIZE);
    let in_range = block < blocks;
    let score = score_of(group.z, row, block, in_range, group.y, lane);
    if (lane % LANES == 0u && block < params.score_stride) {
        let sets = params.num_heads / params.heads_per_set;
        let at = (group.z * sets + group.y) * params.score_stride + block;
        scores[at] = select(-params.infinity, ranked(score * params.scale, block, blocks, row.y), in_range);
    }
}

fn pages_of(row: vec4<u32>, block: u32) -> u32 {
    return min(PAGES, (row.y + BLOCK_SIZE - 1u) / BLOCK_SIZE - block * PAGES);
}

// The block of the last token comes before all, then sinks and recent ones, then all others, however large their scores.
fn ranked(score: f32, block: u32, blocks: u32, len: u32) -> f32 {
    let whole = select(blocks, len / (PAGES * BLOCK_SIZE), params.recent_full == 1u);
    let forced = block < params.sink_blocks || block + params.recent_blocks >= whole;
    return select(select(min(score, -LOWEST), LARGEST, forced), params.infinity, block + 1u == blocks);
}
