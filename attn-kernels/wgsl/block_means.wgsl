// Mean keys and values of blocks of a sequence: what stands for the blocks that FlashPrefill leaves out (arXiv 2608.19758).
//   tables   physical blocks (pages of BLOCK_SIZE tokens);  k_cache, v_cache  layouts of the kv module
//   mean_keys, mean_values  [num_kv_heads, mean_stride, head_dim] f32, of the blocks 0 to `blocks`, all of which are full
// TOKENS lanes share eight channels, as those of block_mean do, first of the keys and then of the values.
// Grid: (ceil(num_kv_heads * head_dim / (8 * UNITS)), blocks folded into y and z).
// Bytes moved: 2 * element * PAGES * BLOCK_SIZE * num_kv_heads * head_dim a block. CPU reference: src/cpu/block_means.rs
#import HEAD_DIM = 64
#import BLOCK_SIZE = 16
#import PAGES = 8
#import kv = kv_f16

struct BlockMeansParams {
    num_kv_heads: u32,
    blocks: u32,
    table: u32, // first entry of the sequence's table
    mean_stride: u32,
    k_scale: f32, // of fp8
    v_scale: f32,
}

@group(0) @binding(0) var<uniform> params: BlockMeansParams;
@group(0) @binding(1) var<storage, read> tables: array<u32>;
@group(0) @binding(4) var<storage, read_write> mean_keys: array<f32>;
@group(0) @binding(5) var<storage, read_write> mean_values: array<f32>;

const TOKENS: u32 = 16u;
const UNITS: u32 = 8u;
const WG: u32 = TOKENS * UNITS;
const CHUNKS: u32 = HEAD_DIM / 8u;
const BLOCK: u32 = PAGES * BLOCK_SIZE;

var<workgroup> parts: array<array<f32, 8>, WG>;

@compute @workgroup_size(WG)
fn block_means(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let block = group.z * 65535u + group.y;
    if (block >= params.blocks) {
        return;
    }
    let unit = group.x * UNITS + lane / TOKENS;
    let first = lane % TOKENS;
    let head = unit / CHUNKS;
    let chunk = unit % CHUNKS;
    let in_range = unit < params.num_kv_heads * CHUNKS;
    let to = (head * params.mean_stride + block) * HEAD_DIM + chunk * 8u + first;
    for (var values = 0u; values < 2u; values++) {
        var low = vec4(0.0);
        var high = vec4(0.0);
        if (in_range) {
            for (var t = first; t < BLOCK; t += TOKENS) {
                let page = tables[params.table + block * PAGES + t / BLOCK_SIZE] * params.num_kv_heads + head;
                let offset = t % BLOCK_SIZE;
                if (values == 0u) {
                    let k = k_load(k_at(page, chunk, offset));
                    let scale = k_factor(page, offset);
                    low += (kv_low(k) - KV_ZERO) * scale;
                    high += (kv_high(k) - KV_ZERO) * scale;
                } else {
                    let v = v_load(v_at(page, chunk, offset));
                    let scale = v_factor(page, offset);
                    low += (kv_low(v) - KV_ZERO) * scale;
                    high += (kv_high(v) - KV_ZERO) * scale;
                }
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
            let mean = sum * (1.0 / f32(BLOCK));
            if (values == 0u) {
                mean_keys[to] = mean;
            } else {
                mean_values[to] = mean;
            }
        }
        workgroupBarrier();
    }
}
