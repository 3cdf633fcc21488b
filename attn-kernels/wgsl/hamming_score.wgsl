// Scores of blocks for hash retrieval: minus the Hamming distance of a row's query from the nearest token of the block,
// over all KV heads.
//   queries [n, num_kv_heads, WORDS] u32 and codes [num_blocks, num_kv_heads, BLOCK_SIZE, WORDS] of hash_codes
//   tables  physical blocks;  rows [n] vec4<u32>: -, KV length, first entry of its table, -
//   scores  [n, score_stride] f32: +inf for blocks in must_select (negative ones count from the end), -inf beyond the
//           sequence; the first sink_tokens and the last recent_tokens are at distance 0
// A block is PAGES pages. Grid: (ceil(score_stride / BLOCKS), n). Bytes moved: 4 * WORDS * num_kv_heads a token of a row.
// CPU reference: src/cpu/hamming_score.rs
#import BLOCK_SIZE = 16
#import PAGES = 8
#import WORDS = 4

struct HammingScoreParams {
    num_kv_heads: u32,
    score_stride: u32,
    sink_tokens: u32,
    recent_tokens: u32,
    must_select: vec4<i32>,
    num_must: u32,
    infinity: f32, // which WGSL cannot write
    rows: u32,
}

@group(0) @binding(0) var<uniform> params: HammingScoreParams;
@group(0) @binding(1) var<storage, read> queries: array<u32>;
@group(0) @binding(2) var<storage, read> codes: array<u32>;
@group(0) @binding(3) var<storage, read> tables: array<u32>;
@group(0) @binding(4) var<storage, read> rows: array<vec4<u32>>;
@group(0) @binding(5) var<storage, read_write> scores: array<f32>;

const WG: u32 = 256u;
const TOKENS: u32 = BLOCK_SIZE * PAGES;
const BLOCKS: u32 = max(WG / TOKENS, 1u);

var<workgroup> nearest: array<atomic<u32>, BLOCKS>;

@compute @workgroup_size(WG)
fn hamming_score(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = rows[group.y];
    let first = group.x * BLOCKS;
    if (lane < BLOCKS) {
        atomicStore(&nearest[lane], 0xffffffffu);
    }
    workgroupBarrier();
    for (var i = lane; i < BLOCKS * TOKENS; i += WG) {
        let token = first * TOKENS + i;
        if (token < row.y) {
            atomicMin(&nearest[i / TOKENS], distance_of(group.y, token, row));
        }
    }
    workgroupBarrier();
    let block = first + lane;
    if (lane < BLOCKS && block < params.score_stride) {
        let blocks = (row.y + TOKENS - 1u) / TOKENS;
        var score = -f32(atomicLoad(&nearest[lane]));
        for (var i = 0u; i < params.num_must; i++) {
            let must = params.must_select[i];
            if (i32(block) == select(must, must + i32(blocks), must < 0)) {
                score = params.infinity;
            }
        }
        scores[group.y * params.score_stride + block] = select(-params.infinity, score, block < blocks);
    }
}

fn distance_of(row_index: u32, token: u32, row: vec4<u32>) -> u32 {
    if (token < params.sink_tokens || token + params.recent_tokens >= row.y) {
        return 0u;
    }
    let block = tables[row.z + token / BLOCK_SIZE];
    var least = 0xffffffffu;
    for (var head = 0u; head < params.num_kv_heads; head++) {
        let key = ((block * params.num_kv_heads + head) * BLOCK_SIZE + token % BLOCK_SIZE) * WORDS;
        let query = (row_index * params.num_kv_heads + head) * WORDS;
        var distance = 0u;
        for (var w = 0u; w < WORDS; w++) {
            distance += countOneBits(codes[key + w] ^ queries[query + w]);
        }
        least = min(least, distance);
    }
    return least;
}
