// Mean keys of blocks of a sequence: FlashPrefill scores them in place of the keys (arXiv 2603.06199).
//   tables   physical blocks (pages of BLOCK_SIZE tokens)
//   k_cache  K layout of the k module
//   means    [num_kv_heads, mean_stride, head_dim] f32, of the blocks 0 to `blocks`, all of which are full
// TOKENS lanes share eight channels: they take every TOKENS-th token each, then one channel, whose parts they add up in the
// lanes' order. Grid: (ceil(num_kv_heads * head_dim / (8 * UNITS)), blocks folded into y and z).
// Bytes moved: element * PAGES * BLOCK_SIZE * num_kv_heads * head_dim a block. CPU reference: src/cpu/block_mean.rs
#import HEAD_DIM = 64
#import BLOCK_SIZE = 16
#import PAGES = 8
#import k = k_f16

struct BlockMeanParams {
    num_kv_heads: u32,
    blocks: u32,
    table: u32, // first entry of the sequence's table
    mean_stride: u32,
}

@group(0) @binding(0) var<uniform> params: BlockMeanParams;
@group(0) @binding(1) var<storage, read> tables: array<u32>;
@group(0) @binding(3) var<storage, read_write> means: array<f32>;

const TOKENS: u32 = 16u;
const UNITS: u32 = 8u;
const WG: u32 = TOKENS * UNITS;
const CHUNKS: u32 = HEAD_DIM / 8u;
const BLOCK: u32 = PAGES * BLOCK_SIZE;

var<workgroup> parts: array<array<f32, 8>, WG>;

@compute @workgroup_size(WG)
fn block_mean(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let block = group.z * 65535u + group.y;
    if (block >= params.blocks) {
        return;
    }
    let unit = group.x * UNITS + lane / TOKENS;
    let first = lane % TOKENS;
    let head = unit / CHUNKS;
    let chunk = unit % CHUNKS;
    let in_range = unit < params.num_kv_heads * CHUNKS;
    var low = vec4(0.0);
    var high = vec4(0.0);
    if (in_range) {
        for (var t = first; t < BLOCK; t += TOKENS) {
            let page = tables[params.table + block * PAGES + t / BLOCK_SIZE];
            let k = key_chunk(page * params.num_kv_heads + head, chunk, t % BLOCK_SIZE);
            low += k.low;
            high += k.high;
        }
    }
    for (var i = 0u; i < 4u; i++) {
        parts[lane][i] = low[i];
        parts[lane][4u + i] = high[i];
    }
    workgroupBarrier();
    if (in_range && first < 8u) {
        var sum = 0.0;
        for (var i = 0u; i < TOKENS; i++) {
            sum += parts[lane - first + i][first];
        }
        // A block is a power of two tokens: the factor is exact.
        means[(head * params.mean_stride + block) * HEAD_DIM + chunk * 8u + first] = sum * (1.0 / f32(BLOCK));
    }
}
