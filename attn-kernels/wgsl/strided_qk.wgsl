// Strided antidiagonal scores of XAttention (arXiv 2503.16428), each row reduced over PART columns at once.
//   score[i, j] = sum over t of q[i * STRIDE + STRIDE - 1 - t] . k[j * STRIDE + t], zeros beyond the last key
//   strides [num_heads, rows, CHUNKS, STRIDE, 8] f32 of stride_queries
//   k_cache K layout of the k module; tables physical blocks
//   parts   [num_heads, rows, part_stride] f32: log2 of the sum of 2^(scale * score) over PART columns, LOWEST where
//           none is seen; not written where all of a tile is masked
// So the scores themselves, PART times as many, never exist. A workgroup makes TILE x TILE of them; the dispatch covers
// `rows` rows from first_row on. Grid: (ceil(columns / TILE), ceil(rows / TILE), num_heads).
// Bytes moved: 4 * rows * columns / PART a head, and keys and queries once a tile. CPU reference: src/cpu/strided_qk.rs
#import numbers
#import HEAD_DIM = 64
#import BLOCK_SIZE = 16
#import STRIDE = 8
#import PART = 16
#import k = k_f16
#import product_tile

#import strided_qk_params
@group(0) @binding(1) var<storage, read> strides: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> tables: array<u32>;
@group(0) @binding(4) var<storage, read_write> parts: array<f32>;

const CHUNKS: u32 = HEAD_DIM / 8u;
// Units of eight channels of one t; two are staged at a time.
const UNITS: u32 = CHUNKS * STRIDE;
const LANES: u32 = PART / 4u;

var<workgroup> ends: array<vec4<f32>, WG>;

@compute @workgroup_size(WG)
fn strided_qk(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row0 = params.first_row + group.y * TILE;
    let col0 = group.x * TILE;
    if (params.causal == 1u && col0 > params.key_start + row0 + TILE - 1u) {
        return;
    }
    let x = lane % TILE_QUADS;
    let y = lane / TILE_QUADS;
    var sums: Products;
    for (var unit = 0u; unit < UNITS; unit += 2u) {
        stage(lane, unit, row0, col0, group.z);
        workgroupBarrier();
        sums = tile_multiply(sums, lane);
        workgroupBarrier();
    }

    let columns = (params.kv_len + STRIDE - 1u) / STRIDE;
    let cols = vec4(col0 + x * 4u) + vec4(0u, 1u, 2u, 3u);
    var end: vec4<f32>;
    for (var i = 0u; i < 4u; i++) {
        let last = select(columns - 1u, min(columns - 1u, params.key_start + row0 + y * 4u + i), params.causal == 1u);
        let seen = select(vec4(LOWEST), sums[i] * params.scale, cols <= vec4(last));
        let top = max(max(seen.x, seen.y), max(seen.z, seen.w));
        end[i] = top + log2(dot(exp2(seen - top), vec4(1.0)));
    }
    ends[lane] = end;
    workgroupBarrier();
    if (x % LANES == 0u) {
        var top = end;
        for (var i = 1u; i < LANES; i++) {
            top = max(top, ends[lane + i]);
        }
        var sum = vec4(0.0);
        for (var i = 0u; i < LANES; i++) {
            sum += exp2(ends[lane + i] - top);
        }
        let part = (col0 + x * 4u) / PART;
        for (var i = 0u; i < 4u; i++) {
            let row = group.y * TILE + y * 4u + i;
            if (row < params.rows && part < params.part_stride) {
                parts[(group.z * params.rows + row) * params.part_stride + part] = top[i] + log2(sum[i]);
            }
        }
    }
}

fn stage(lane: u32, unit: u32, row0: u32, col0: u32, head: u32) {
    let at = staged(lane);
    // All t of a chunk follow each other: their keys are neighbours in memory.
    let chunk = (unit + at.y) / STRIDE;
    let t = (unit + at.y) % STRIDE;
    let in_range = chunk < CHUNKS;
    var low = vec4(0.0);
    var high = vec4(0.0);
    if (stages_columns(lane)) {
        let token = (col0 + at.x) * STRIDE + t;
        if (in_range && token < params.kv_len) {
            let block = tables[params.table + token / BLOCK_SIZE];
            let kv_head = head / (params.num_heads / params.num_kv_heads);
            let k = key_chunk(block * params.num_kv_heads + kv_head, chunk, token % BLOCK_SIZE);
            low = k.low;
            high = k.high;
        }
    } else {
        let row = row0 - params.first_row + at.x;
        if (in_range && row < params.rows) {
            let begin = ((head * params.rows + row) * UNITS + unit + at.y) * 2u;
            low = strides[begin];
            high = strides[begin + 1u];
        }
    }
    tile_put(lane, low, high);
}
