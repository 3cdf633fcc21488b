// y[row] += sum over its TOP experts of weight * (x + bias), in the order of the choice. One lane an element.
//   x [rows, TOP, width] f32, what each expert made of the row;  experts, weights [rows, TOP]
//   biases [*, width], read with BIASED = 1 only;  y [rows, width] f32
// With WEIGHTED = 0 weights count as 1. CPU reference: src/cpu/moe_combine.rs
#import TOP = 2
#import BIASED = 0
#import WEIGHTED = 1
#import flat
override WG: u32 = 64u;

struct MoeCombineParams { rows: u32, width: u32 }

@group(0) @binding(0) var<uniform> params: MoeCombineParams;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> experts: array<u32>;
@group(0) @binding(3) var<storage, read> weights: array<f32>;
@group(0) @binding(4) var<storage, read> biases: array<f32>;
@group(0) @binding(5) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(WG)
fn moe_combine(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let id = flat_index(group, lane);
    let row = id / params.width;
    let i = id % params.width;
    if (row >= params.rows) {
        return;
    }
    var sum = 0.0;
    for (var k = 0u; k < TOP; k++) {
        let pair = row * TOP + k;
        var v = x[pair * params.width + i];
        if (BIASED == 1u) {
            v += biases[experts[pair] * params.width + i];
        }
        sum = fma(v, select(1.0, weights[pair], WEIGHTED == 1u), sum);
    }
    y[id] += sum;
}
