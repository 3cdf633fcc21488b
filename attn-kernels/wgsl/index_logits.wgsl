// Logits of the DSA indexer (DeepSeek-V3.2), key_scale[n] * sum over h of gate[m, h] * relu(q[m, h] . key[n]).
//   q       [rows, num_heads, head_dim] f32, values of fp8 codes without their scales, or any
//   k_cache one head a token, layout of the k module; tables its pages
//   rows    [n] vec4<u32>: row of q and gates, first key, key after the last, first entry of the page table
//   gates   [rows, num_heads] f32, with the scales of queries and all norms folded in
//   logits  [n, logit_stride] f32, column 0 is key 0 of the sequence; -inf where the row sees no key
// A workgroup goes through the heads for TILE keys of one row. Grid: (ceil(logit_stride / TILE), n).
// Bytes moved: keys * (head_dim * element + scale + 4) a row, and the queries once a tile.
// CPU reference: src/cpu/index_logits.rs
#import HEAD_DIM = 128
#import BLOCK_SIZE = 64
#import k = k_index_fp8
#import product_tile

#import index_logits_params
@group(0) @binding(1) var<storage, read> q: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> tables: array<u32>;
@group(0) @binding(4) var<storage, read> rows: array<vec4<u32>>;
@group(0) @binding(5) var<storage, read> gates: array<f32>;
@group(0) @binding(6) var<storage, read_write> logits: array<f32>;

const CHUNKS: u32 = HEAD_DIM / 8u;

var<workgroup> sides: array<vec4<f32>, WG>;

@compute @workgroup_size(WG)
fn index_logits(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = rows[group.y];
    let first = group.x * TILE;
    let at = group.y * params.logit_stride + first;
    if (first >= row.z || first + TILE <= row.y) {
        if (lane < TILE && first + lane < params.logit_stride) {
            logits[at + lane] = params.neg_inf;
        }
        return;
    }
    // Logits of four keys, summed over the heads that the lane owns.
    var sum = vec4(0.0);
    for (var head = 0u; head < params.num_heads; head += TILE) {
        var products = Products();
        for (var chunk = 0u; chunk < CHUNKS; chunk += 2u) {
            stage(lane, row, head, first, chunk);
            workgroupBarrier();
            products = tile_multiply(products, lane);
            workgroupBarrier();
        }
        for (var i = 0u; i < 4u; i++) {
            let h = head + lane / TILE_QUADS * 4u + i;
            if (h < params.num_heads) {
                sum = fma(vec4(gates[row.x * params.num_heads + h]), max(products[i], vec4(0.0)), sum);
            }
        }
    }
    sides[lane] = sum;
    workgroupBarrier();
    if (lane < TILE_QUADS) {
        for (var side = 1u; side < TILE_QUADS; side++) {
            sum += sides[side * TILE_QUADS + lane];
        }
        for (var i = 0u; i < 4u; i++) {
            let key = first + lane * 4u + i;
            if (key < params.logit_stride) {
                var logit = params.neg_inf;
                if (key >= row.y && key < row.z) {
                    logit = sum[i] * key_scale(tables[row.w + key / BLOCK_SIZE], key % BLOCK_SIZE);
                }
                logits[at + lane * 4u + i] = logit;
            }
        }
    }
}

fn stage(lane: u32, row: vec4<u32>, head: u32, first: u32, chunk0: u32) {
    let at = staged(lane);
    let chunk = chunk0 + at.y;
    var low = vec4(0.0);
    var high = vec4(0.0);
    if (chunk < CHUNKS) {
        if (stages_columns(lane)) {
            let key = first + at.x;
            if (key >= row.y && key < row.z) {
                let k = key_chunk(tables[row.w + key / BLOCK_SIZE], chunk, key % BLOCK_SIZE);
                low = k.low;
                high = k.high;
            }
        } else if (head + at.x < params.num_heads) {
            let begin = (row.x * params.num_heads + head + at.x) * (HEAD_DIM / 4u) + chunk * 2u;
            low = q[begin];
            high = q[begin + 1u];
        }
    }
    tile_put(lane, low, high);
}
