// Rotates the queries of an indexer and rounds them to fp8, in place: what stays is the values of codes, for index_logits, and
// their scales go into the gates.
//   q      [vectors, HEAD_DIM] f32;  gates [vectors] f32, a vector is a head of a row
// One workgroup a vector. Grid: n folded. Bytes moved: 8 * HEAD_DIM + 8 a vector. CPU reference: src/cpu/index_query_fp8.rs
#import HEAD_DIM = 128
#import index_code

struct IndexQueryFp8Params { vectors: u32, root: f32 }

@group(0) @binding(0) var<uniform> params: IndexQueryFp8Params;
@group(0) @binding(1) var<storage, read_write> q: array<f32>;
@group(0) @binding(2) var<storage, read_write> gates: array<f32>;

@compute @workgroup_size(WG)
fn index_query_fp8(@builtin(workgroup_id) group: vec3<u32>, lane: Lane) {
    let id = group.y * 65535u + group.x;
    if (id >= params.vectors) {
        return;
    }
    for (var i = lane.index; i < HEAD_DIM; i += WG) {
        vector[i] = q[id * HEAD_DIM + i];
    }
    let scale = rotate(params.root, lane);
    for (var i = lane.index; i < HEAD_DIM / 4u; i += WG) {
        let values = values_of(four_codes(i, scale));
        for (var j = 0u; j < 4u; j++) {
            q[id * HEAD_DIM + 4u * i + j] = values[j];
        }
    }
    if (lane.index == 0u) {
        gates[id] *= scale;
    }
}
