// Rows after an RMS norm, rounded to f16 for matmul_coop, a workgroup a row: half the bytes that it reads again for every tile
// of columns.
//   x [rows, 4 * quads] f32;  weight [4 * quads] f32;  halves [rows, 4 * quads] f16, two to a word
// Elements must not exceed 65,504 after the norm. Bytes moved: 6 an element.
// CPU reference: src/cpu/norm_halves.rs
#import WG = 256
#import reduce = reduce_tree

const VALUES: u32 = 1u;

struct NormHalvesParams { rows: u32, quads: u32, eps: f32 }

@group(0) @binding(0) var<uniform> params: NormHalvesParams;
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> weight: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> halves: array<vec2<u32>>;

@compute @workgroup_size(WG)
fn norm_halves(@builtin(workgroup_id) group: vec3<u32>, lane: Lane) {
    let base = group.x * params.quads;
    var squares = vec4<f32>();
    for (var i = lane.index; i < params.quads; i += WG) {
        let v = x[base + i];
        squares = fma(v, v, squares);
    }
    let sum = squares.x + squares.y + (squares.z + squares.w);
    let factor = 1.0 / sqrt(reduce_add(Values(sum), lane)[0] / f32(params.quads * 4u) + params.eps);
    for (var i = lane.index; i < params.quads; i += WG) {
        let v = x[base + i] * factor * weight[i];
        halves[base + i] = vec2(pack2x16float(v.xy), pack2x16float(v.zw));
    }
}
