// y[row, first + i] = added[i], or += with KEEP = 1: before a matmul that adds to y. One lane an element.
//   y rows of stride f32;  added [cols]
// CPU reference: src/cpu/bias.rs
#import KEEP = 0
#import flat
override WG: u32 = 64u;

struct BiasParams { rows: u32, cols: u32, stride: u32, first: u32 }

@group(0) @binding(0) var<uniform> params: BiasParams;
@group(0) @binding(1) var<storage, read> added: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(WG)
fn bias(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let id = flat_index(group, lane);
    let row = id / params.cols;
    let col = id % params.cols;
    if (row >= params.rows) {
        return;
    }
    let at = row * params.stride + params.first + col;
    if (KEEP == 1u) {
        y[at] += added[col];
    } else {
        y[at] = added[col];
    }
}
