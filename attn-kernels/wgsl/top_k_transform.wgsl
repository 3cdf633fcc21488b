// Turns positions that top_k left into slots or places in a ragged buffer, in place; -1 stays -1.
//   rows   [n] vec4<u32> of top_k, of which the base of the transform counts
//   table  page table of the paged transform; read by no other
//   out    [n, out_stride] i32 positions
// Grid: n * out_stride folded. Bytes moved: 8 * n * out_stride, and the table's entries.
// CPU reference: src/cpu/top_k_transform.rs
#import flat
#import transform = transform_paged

struct TopKTransformParams { rows: u32, out_stride: u32, page_size: u32 }

@group(0) @binding(0) var<uniform> params: TopKTransformParams;
@group(0) @binding(1) var<storage, read> rows: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> table: array<u32>;
@group(0) @binding(3) var<storage, read_write> out: array<u32>;

const WG: u32 = 256u;

@compute @workgroup_size(WG)
fn top_k_transform(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let i = flat_index(group, lane);
    if (i < params.rows * params.out_stride && out[i] != 0xffffffffu) {
        out[i] = transformed(rows[i / params.out_stride].w, out[i]);
    }
}
