// out[i] = x[source(i)] / sqrt(mean(x^2) + eps) * weight, a workgroup a row.
//   x [*, width] f32;  sources u32, from `first` on (with GATHER = 1; else row i itself);  weight [width];  out [rows, width]
// CPU reference: src/cpu/rms_norm.rs
#import GATHER = 0
// Whether the norm is added to `out`.
#import ADD = 0
#import WG = 64
#import reduce = reduce_tree
#import inverse_root

const VALUES: u32 = 1u;

struct RmsNormParams { rows: u32, width: u32, eps: f32, first: u32 }

@group(0) @binding(0) var<uniform> params: RmsNormParams;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> sources: array<u32>;
@group(0) @binding(3) var<storage, read> weight: array<f32>;
@group(0) @binding(4) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(WG)
fn rms_norm(@builtin(workgroup_id) group: vec3<u32>, lane: Lane) {
    let row = group.x;
    var source = row;
    if (GATHER == 1u) {
        source = sources[params.first + row];
    }
    var sum = 0.0;
    for (var i = lane.index; i < params.width; i += WG) {
        let v = x[source * params.width + i];
        sum = fma(v, v, sum);
    }
    let factor = inverse_root(reduce_add(Values(sum), lane)[0] / f32(params.width) + params.eps);
    for (var i = lane.index; i < params.width; i += WG) {
        var value = x[source * params.width + i] * factor * weight[i];
        if (ADD == 1u) {
            value += out[row * params.width + i];
        }
        out[row * params.width + i] = value;
    }
}
