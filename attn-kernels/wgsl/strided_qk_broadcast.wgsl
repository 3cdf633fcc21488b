// Strided antidiagonal scores of XAttention as strided_qk makes them, for software drivers, which run a load lane by lane.
//   score[i, j] = sum over t of q[i * STRIDE + STRIDE - 1 - t] . k[j * STRIDE + t], zeros beyond the last key
//   strides [num_heads, rows, HEAD_DIM / 8, STRIDE, 8] f32 of stride_queries
//   k_cache K layout of the k module; tables physical blocks, of whole strides
//   parts   [num_heads, rows, part_stride] f32: log2 of the sum of 2^(scale * score) over PART columns, LOWEST where
//           none is seen; not written where all of a workgroup is masked
// A lane owns a row and COLUMNS columns, whose keys eight lanes read for each other, and reads its queries once for all of them.
// The eights of a workgroup lie below each other as far as there are rows, then side by side: few rows leave no lane idle.
// Grid: (ceil(columns / (COLUMNS * EIGHTS / tall)), ceil(rows / (8 * tall)), num_heads), tall as `tall` says.
// Bytes moved: 4 * rows * columns / PART a head, queries once for COLUMNS columns, keys once for eight rows.
// CPU reference: src/cpu/strided_qk.rs
#import numbers
#import HEAD_DIM = 64
#import BLOCK_SIZE = 16
#import STRIDE = 8
#import PART = 16
#import COLUMNS = 16
#import k = k_f16
#import span = key_span_f16

#import strided_qk_params
@group(0) @binding(1) var<storage, read> strides: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> tables: array<u32>;
@group(0) @binding(4) var<storage, read_write> parts: array<f32>;

const EIGHTS: u32 = 8u;
const PARTS: u32 = COLUMNS / PART;

@compute @workgroup_size(8u * EIGHTS)
fn strided_qk_broadcast(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let tall = tall();
    let rows0 = group.y * tall * 8u;
    let columns0 = group.x * (EIGHTS / tall) * COLUMNS;
    if (params.causal == 1u && columns0 > params.key_start + params.first_row + rows0 + tall * 8u - 1u) {
        return;
    }
    let row = rows0 + lane % (tall * 8u);
    let col0 = columns0 + lane / (tall * 8u) * COLUMNS;
    let kv_head = group.z / (params.num_heads / params.num_kv_heads);
    // The lane's share of each column's first key.
    var at: array<u32, COLUMNS>;
    for (var c = 0u; c < COLUMNS; c++) {
        let token = min((col0 + c) * STRIDE, params.kv_len - 1u) / STRIDE * STRIDE;
        let block = tables[params.table + token / BLOCK_SIZE];
        at[c] = span_at(block * params.num_kv_heads + kv_head, token % BLOCK_SIZE, lane);
    }
    let first = (group.z * params.rows + min(row, params.rows - 1u)) * HEAD_DIM * STRIDE / 4u;
    var sums: array<f32, COLUMNS>;
    for (var chunk = 0u; chunk < HEAD_DIM / 8u; chunk += SPAN) {
        for (var t = 0u; t < STRIDE; t++) {
            let own = queries(first + (chunk * STRIDE + t) * 2u);
            #unroll c < COLUMNS
                let seen = (col0 + c) * STRIDE + t < params.kv_len;
                let key = key_span(at[c] + chunk * BLOCK_SIZE * CHUNK_VECTORS + t, seen, lane);
                for (var i = 0u; i < 2u * SPAN; i++) {
                    sums[c] = fma(own[i].x, key[i].x, sums[c]);
                    sums[c] = fma(own[i].y, key[i].y, sums[c]);
                    sums[c] = fma(own[i].z, key[i].z, sums[c]);
                    sums[c] = fma(own[i].w, key[i].w, sums[c]);
                }
            #end
        }
    }
    let columns = (params.kv_len + STRIDE - 1u) / STRIDE;
    let last = select(columns - 1u, min(columns - 1u, params.key_start + params.first_row + row), params.causal == 1u);
    for (var p = 0u; p < PARTS; p++) {
        var top = LOWEST;
        for (var c = p * PART; c < (p + 1u) * PART; c++) {
            sums[c] = select(LOWEST, sums[c] * params.scale, col0 + c <= last);
            top = max(top, sums[c]);
        }
        var sum = 0.0;
        for (var c = p * PART; c < (p + 1u) * PART; c++) {
            sum += exp2(sums[c] - top);
        }
        let part = col0 / PART + p;
        if (row < params.rows && part < params.part_stride) {
            parts[(group.z * params.rows + row) * params.part_stride + part] = top + log2(sum);
        }
    }
}

// Eights of a workgroup that lie below each other: a power of two.
fn tall() -> u32 {
    var tall = 1u;
    while (tall < EIGHTS && tall * 8u < params.rows) {
        tall *= 2u;
    }
    return tall;
}

// Chunks of the query at `at`, one behind the other.
fn queries(at: u32) -> array<vec4<f32>, 2u * SPAN> {
    var own: array<vec4<f32>, 2u * SPAN>;
    for (var i = 0u; i < SPAN; i++) {
        own[2u * i] = strides[at + i * STRIDE * 2u];
        own[2u * i + 1u] = strides[at + i * STRIDE * 2u + 1u];
    }
    return own;
}
