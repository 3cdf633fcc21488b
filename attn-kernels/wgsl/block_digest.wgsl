// Digests of the keys of pages that a step wrote to: what block_score reads in place of the keys.
//   touched  [n] vec2<u32>: physical block, or NO_BLOCK for an entry that names none; tokens that it holds by now (1 to
//            BLOCK_SIZE)
//   k_cache  K layout of the k module, `num_blocks` blocks from first_block on; tokens beyond those named are not read, and
//            entries that name other blocks are left out
//   digests  [num_blocks, num_kv_heads, VECTORS, head_dim]: minimum and maximum, or mean; f32 beside caches in f32, else f16,
//            with minima rounded down, maxima up and means to nearest
// A page is digested anew from all its tokens, in f32: repeating it changes nothing, whatever the page held before, and it is
// rounded once. TOKENS lanes share eight channels of one head: they take every TOKENS-th token each, then two channels of a
// vector, whose parts they join in the lanes' order. Grid: (ceil(num_kv_heads * head_dim / 64), n folded into y and z).
// Bytes moved: n * num_kv_heads * head_dim * (tokens * element + VECTORS * (4 or 2)). CPU reference: src/cpu/block_digest.rs
#import HEAD_DIM = 64
#import BLOCK_SIZE = 16
#import k = k_f16
#import digest = digest_min_max
#import digests = digests_write_f16

struct BlockDigestParams { num_kv_heads: u32, touched: u32, first_block: u32, num_blocks: u32 }

@group(0) @binding(0) var<uniform> params: BlockDigestParams;
@group(0) @binding(1) var<storage, read> touched: array<vec2<u32>>;

const TOKENS: u32 = 8u;
const UNITS: u32 = 8u;
const WG: u32 = TOKENS * UNITS;
const CHUNKS: u32 = HEAD_DIM / 8u;
// Pairs of channels of a chunk's vectors.
const PAIRS: u32 = 4u * VECTORS;

var<workgroup> parts: array<array<vec2<f32>, PAIRS>, WG>;

@compute @workgroup_size(WG)
fn block_digest(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let page = group.z * 65535u + group.y;
    if (page >= params.touched) {
        return;
    }
    let block = touched[page].x;
    // NO_BLOCK is beyond every range.
    let held = block - params.first_block;
    if (held >= params.num_blocks) {
        return;
    }
    let tokens = touched[page].y;
    let unit = group.x * UNITS + lane / TOKENS;
    let first = lane % TOKENS;
    let head = unit / CHUNKS;
    let page_of_head = held * params.num_kv_heads + head;
    let chunk = unit % CHUNKS;
    let in_range = unit < params.num_kv_heads * CHUNKS;
    if (in_range && first < tokens) {
        var part = digest_of(key_chunk(page_of_head, chunk, first));
        for (var t = first + TOKENS; t < tokens; t += TOKENS) {
            part = digest_join(part, digest_of(key_chunk(page_of_head, chunk, t)));
        }
        for (var i = 0u; i < 2u * VECTORS; i++) {
            parts[lane][i * 2u] = part[i].xy;
            parts[lane][i * 2u + 1u] = part[i].zw;
        }
    }
    workgroupBarrier();
    if (in_range && first < PAIRS) {
        let v = first / 4u;
        var whole = parts[lane - first][first];
        for (var i = 1u; i < min(TOKENS, tokens); i++) {
            whole = pair_join(whole, parts[lane - first + i][first], v);
        }
        let vector = (block * params.num_kv_heads + head) * VECTORS + v;
        store_pair(vector * (HEAD_DIM / 2u) + chunk * 4u + first % 4u, v, pair_finish(whole, tokens));
    }
}
