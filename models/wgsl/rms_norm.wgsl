// out[i] = x[source(i)] / sqrt(mean(x^2) + eps) * weight, a workgroup a row.
//   x [*, width] f32;  sources u32, from `first` on (with GATHER = 1; else row i itself);  weight [width];  out [rows, width]
// CPU reference: src/cpu/rms_norm.rs
#import GATHER = 0
override WG: u32 = 64u;

struct RmsNormParams { rows: u32, width: u32, eps: f32, first: u32 }

@group(0) @binding(0) var<uniform> params: RmsNormParams;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> sources: array<u32>;
@group(0) @binding(3) var<storage, read> weight: array<f32>;
@group(0) @binding(4) var<storage, read_write> out: array<f32>;

var<workgroup> lanes: array<f32, WG>;

@compute @workgroup_size(WG)
fn rms_norm(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = group.x;
    var source = row;
    if (GATHER == 1u) {
        source = sources[params.first + row];
    }
    var sum = 0.0;
    for (var i = lane; i < params.width; i += WG) {
        let v = x[source * params.width + i];
        sum = fma(v, v, sum);
    }
    lanes[lane] = sum;
    for (var half = WG / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (lane < half) {
            lanes[lane] += lanes[lane + half];
        }
    }
    workgroupBarrier();
    let factor = 1.0 / sqrt(lanes[0] / f32(params.width) + params.eps);
    for (var i = lane; i < params.width; i += WG) {
        out[row * params.width + i] = x[source * params.width + i] * factor * weight[i];
    }
}
