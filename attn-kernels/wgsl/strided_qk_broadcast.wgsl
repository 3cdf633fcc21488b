// Strided antidiagonal scores of XAttention as strided_qk makes them, for software drivers, which run a load lane by lane.
//   score[i, j] = sum over t of q[i * STRIDE + STRIDE - 1 - t] . k[j * STRIDE + t], zeros beyond either end
//   q       rows of q_stride f32, [num_heads, head_dim] from 0; token 0 is row q_first, after `front` zero queries
//   k_cache K layout of the k module; tables physical blocks, of whole strides
//   parts   [num_heads, rows, part_stride] f32: log2 of the sum of 2^(scale * score) over PART columns, LOWEST where
//           none is seen; not written where all of a workgroup is masked
// A lane owns a row and COLUMNS columns, whose keys eight lanes read for each other, and reads its queries once for all of them.
// Grid: (ceil(columns / COLUMNS), ceil(rows / WG), num_heads).
// Bytes moved: 4 * rows * columns / PART a head, queries once for COLUMNS columns, keys once for eight rows.
// CPU reference: src/cpu/strided_qk.rs
#import numbers
#import HEAD_DIM = 64
#import BLOCK_SIZE = 16
#import STRIDE = 8
#import PART = 16
#import k = k_f16
#import span = key_span_f16

#import strided_qk_params
@group(0) @binding(1) var<storage, read> q: array<f32>;
@group(0) @binding(3) var<storage, read> tables: array<u32>;
@group(0) @binding(4) var<storage, read_write> parts: array<f32>;

const WG: u32 = 64u;
const COLUMNS: u32 = 16u;
const PARTS: u32 = COLUMNS / PART;

@compute @workgroup_size(WG)
fn strided_qk_broadcast(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row0 = params.first_row + group.y * WG;
    let col0 = group.x * COLUMNS;
    if (params.causal == 1u && col0 > params.key_start + row0 + WG - 1u) {
        return;
    }
    let kv_head = group.z / (params.num_heads / params.num_kv_heads);
    // The lane's share of each column's first key.
    var at: array<u32, COLUMNS>;
    for (var c = 0u; c < COLUMNS; c++) {
        let token = min((col0 + c) * STRIDE, params.kv_len - 1u) / STRIDE * STRIDE;
        let block = tables[params.table + token / BLOCK_SIZE];
        at[c] = span_at(block * params.num_kv_heads + kv_head, token % BLOCK_SIZE, lane);
    }
    var sums: array<f32, COLUMNS>;
    for (var chunk = 0u; chunk < HEAD_DIM / 8u; chunk += SPAN) {
        for (var t = 0u; t < STRIDE; t++) {
            let own = queries(row0 + lane, t, chunk, group.z);
            #unroll c < 16
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
    let row = group.y * WG + lane;
    let columns = (params.kv_len + STRIDE - 1u) / STRIDE;
    let last = select(columns - 1u, min(columns - 1u, params.key_start + row0 + lane), params.causal == 1u);
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

// Elements 8 * chunk on of the query of `row` that meets the key of number t.
fn queries(row: u32, t: u32, chunk: u32, head: u32) -> array<vec4<f32>, 2u * SPAN> {
    let token = row * STRIDE + STRIDE - 1u - t;
    let seen = token >= params.front && token - params.front < params.q_len;
    let begin = (params.q_first + select(0u, token - params.front, seen)) * params.q_stride + head * HEAD_DIM + chunk * 8u;
    var own: array<vec4<f32>, 2u * SPAN>;
    for (var i = 0u; i < 2u * SPAN; i++) {
        let o = begin + i * 4u;
        own[i] = select(vec4(0.0), vec4(q[o], q[o + 1u], q[o + 2u], q[o + 3u]), seen);
    }
    return own;
}
