// out = activation(gate) * up of every row: what experts, and MLPs with a limit, do between their matrices.
//   x [rows, 2, inner] f32, gate then up;  out [rows, out_stride] f32
//   experts, weights [rows];  biases [*, 2, inner], read with BIASED = 1 only
// KIND: see the gated module.
// With WEIGHTED = 1 gate and up are multiplied by the row's weight first: that of its input. One lane an element.
// CPU reference: src/cpu/glu.rs
#import KIND = 0
#import BIASED = 0
#import WEIGHTED = 0
#import flat
#import gated
override WG: u32 = 64u;

struct GluParams {
    rows: u32,
    inner: u32,
    out_stride: u32,
    alpha: f32,
    limit: f32,
}

@group(0) @binding(0) var<uniform> params: GluParams;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> experts: array<u32>;
@group(0) @binding(3) var<storage, read> weights: array<f32>;
@group(0) @binding(4) var<storage, read> biases: array<f32>;
@group(0) @binding(5) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(WG)
fn glu(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let id = flat_index(group, lane);
    let row = id / params.inner;
    let i = id % params.inner;
    if (row >= params.rows) {
        return;
    }
    var gate = x[row * 2u * params.inner + i];
    var up = x[(row * 2u + 1u) * params.inner + i];
    if (WEIGHTED == 1u) {
        gate *= weights[row];
        up *= weights[row];
    }
    if (BIASED == 1u) {
        gate += biases[experts[row] * 2u * params.inner + i];
        up += biases[(experts[row] * 2u + 1u) * params.inner + i];
    }
    out[row * params.out_stride + i] = gated(gate, up, params.alpha, params.limit);
}
