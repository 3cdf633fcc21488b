// Scores of selection blocks from attention over compressed keys (NSA, arXiv 2502.11089): probabilities of the compressed
// blocks that overlap a block, weighted by how much, summed over the query heads of a KV head.
//   probs   [n, num_heads, prob_stride] f32; what a row does not see is not read
//   rows    [n] vec4<u32>: -, KV length with the query's own key, -, -
//   scores  [n, num_kv_heads, score_stride] f32: +inf for the first init_blocks and the last local_blocks, -inf beyond
//           the sequence
// Compressed blocks are KERNEL strides long and a stride apart, a selection block is BLOCK strides.
// Grid: (ceil(score_stride / WG), num_kv_heads, n). Bytes moved: 4 * num_heads a compressed block of a row.
// CPU reference: src/cpu/nsa_block_score.rs
#import KERNEL = 2
#import BLOCK = 4

struct NsaBlockScoreParams {
    num_heads: u32,
    num_kv_heads: u32,
    prob_stride: u32,
    score_stride: u32,
    stride: u32, // tokens
    init_blocks: u32,
    local_blocks: u32,
    infinity: f32, // which WGSL cannot write
    rows: u32,
}

@group(0) @binding(0) var<uniform> params: NsaBlockScoreParams;
@group(0) @binding(1) var<storage, read> probs: array<f32>;
@group(0) @binding(2) var<storage, read> rows: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read_write> scores: array<f32>;

const WG: u32 = 64u;
// Compressed blocks that overlap a block.
const OVERLAPS: u32 = KERNEL + BLOCK - 1u;

@compute @workgroup_size(WG)
fn nsa_block_score(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let block = group.x * WG + lane;
    if (block >= params.score_stride) {
        return;
    }
    let len = rows[group.z].y;
    let blocks = (len + BLOCK * params.stride - 1u) / (BLOCK * params.stride);
    var score = -params.infinity;
    if (block < params.init_blocks || block + params.local_blocks >= blocks) {
        score = params.infinity;
    } else {
        score = importance(group, block, len);
    }
    let at = (group.z * params.num_kv_heads + group.y) * params.score_stride + block;
    scores[at] = select(-params.infinity, score, block < blocks);
}

fn importance(group: vec3<u32>, block: u32, len: u32) -> f32 {
    let strides = len / params.stride;
    // Compressed blocks that end within the row.
    let seen = select(0u, strides - (KERNEL - 1u), strides >= KERNEL);
    let heads = params.num_heads / params.num_kv_heads;
    var sum = 0.0;
    for (var i = 0u; i < OVERLAPS; i++) {
        let compressed = block * BLOCK + i;
        if (compressed >= KERNEL - 1u && compressed - (KERNEL - 1u) < seen) {
            var of_heads = 0.0;
            for (var h = 0u; h < heads; h++) {
                let row = group.z * params.num_heads + group.y * heads + h;
                of_heads += probs[row * params.prob_stride + compressed - (KERNEL - 1u)];
            }
            sum += f32(min(min(i + 1u, OVERLAPS - i), min(KERNEL, BLOCK))) * of_heads;
        }
    }
    return sum;
}
