// Norms runs of `width` elements in place, `heads` of them in every row, a workgroup a run.
//   x       rows of stride f32, runs one after the other from `first` on
//   weight  [2, width]: factors, then what is added
// x = (x - mean) / sqrt(mean((x - mean)^2) + eps) * factor + added; the mean only with CENTRED = 1 (layer norm), else it
// counts as 0 (RMS norm).
// CPU reference: src/cpu/norm_heads.rs
#import CENTRED = 0
#import WG = 64
#import reduce = reduce_tree
#import inverse_root

const VALUES: u32 = 1u;

struct NormHeadsParams {
    rows: u32,
    heads: u32,
    width: u32,
    stride: u32,
    first: u32,
    eps: f32,
}

@group(0) @binding(0) var<uniform> params: NormHeadsParams;
@group(0) @binding(1) var<storage, read> weight: array<f32>;
@group(0) @binding(2) var<storage, read_write> x: array<f32>;

@compute @workgroup_size(WG)
fn norm_heads(@builtin(workgroup_id) group: vec3<u32>, lane: Lane) {
    let run = group.y * 65535u + group.x;
    let row = run / params.heads;
    if (row >= params.rows) {
        return;
    }
    let base = row * params.stride + params.first + run % params.heads * params.width;
    var mean = 0.0;
    if (CENTRED == 1u) {
        var sum = 0.0;
        for (var i = lane.index; i < params.width; i += WG) {
            sum += x[base + i];
        }
        mean = reduce_add(Values(sum), lane)[0] / f32(params.width);
    }
    var squares = 0.0;
    for (var i = lane.index; i < params.width; i += WG) {
        let v = x[base + i] - mean;
        squares = fma(v, v, squares);
    }
    let factor = inverse_root(reduce_add(Values(squares), lane)[0] / f32(params.width) + params.eps);
    for (var i = lane.index; i < params.width; i += WG) {
        x[base + i] = (x[base + i] - mean) * factor * weight[i] + weight[params.width + i];
    }
}
