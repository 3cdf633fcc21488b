// Queries of a chunk as strided_qk multiplies them: a row for every stride of them, in the order of a column's keys.
//   q        rows of q_stride f32, a multiple of 4, [num_heads, head_dim] from 0; token 0 is row q_first, after `front` zeros
//   strides  [num_heads, rows, HEAD_DIM / 8, STRIDE, 8], two f16 or an f32 a word: channels of token
//            row * STRIDE + STRIDE - 1 - t, zeros beyond either end of the chunk
// The dispatch covers `rows` rows from first_row on; a lane moves eight channels of a query.
// Grid: (ceil(HEAD_DIM / 8 * STRIDE / WG), rows, num_heads).
// Bytes moved: 4 * head_dim a query and head, and what is written. CPU reference: src/cpu/stride_queries.rs
#import HEAD_DIM = 64
#import STRIDE = 8
// Whether strides are f16.
#import HALVES = 1
#import pack_halves

struct StrideQueriesParams {
    num_heads: u32,
    q_stride: u32,
    q_first: u32,
    q_len: u32,
    front: u32,
    first_row: u32,
    rows: u32,
}

@group(0) @binding(0) var<uniform> params: StrideQueriesParams;
@group(0) @binding(1) var<storage, read> q: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> strides: array<vec4<u32>>;

const WG: u32 = 64u;
const UNITS: u32 = HEAD_DIM / 8u * STRIDE;

@compute @workgroup_size(WG)
fn stride_queries(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let unit = group.x * WG + lane;
    if (unit >= UNITS) {
        return;
    }
    // Neighbours write neighbouring units, and read a sector of 32 bytes each.
    let token = (params.first_row + group.y) * STRIDE + STRIDE - 1u - unit % STRIDE;
    var low = vec4(0.0);
    var high = vec4(0.0);
    if (token >= params.front && token - params.front < params.q_len) {
        let row = params.q_first + token - params.front;
        let at = (row * params.q_stride + group.z * HEAD_DIM + unit / STRIDE * 8u) / 4u;
        low = q[at];
        high = q[at + 1u];
    }
    let to = (group.z * params.rows + group.y) * UNITS + unit;
    if (HALVES == 1u) {
        strides[to] = halves(low, high);
    } else {
        strides[to * 2u] = bitcast<vec4<u32>>(low);
        strides[to * 2u + 1u] = bitcast<vec4<u32>>(high);
    }
}
