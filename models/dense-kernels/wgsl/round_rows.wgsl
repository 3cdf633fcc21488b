// Rows rounded to f16 for matmul_coop, as they are or after an RMS norm, a workgroup a row: half the bytes that it reads again
// for every tile of columns.
//   x [rows, 4 * x_stride] f32;  halves [rows, 32 * blocks] f16, two to a word
// Elements must not exceed 65,504. Bytes moved: 6 an element.
// CPU reference: src/cpu/round_rows.rs
#import WG = 256
#import reduce = reduce_tree
// Binding of the norm's weight.
#import WEIGHT = 3
#import norm = norm_none

const VALUES: u32 = 1u;

struct RoundRowsParams {
    rows: u32,
    blocks: u32,
    x_stride: u32, // in vec4
    eps: f32,
}

@group(0) @binding(0) var<uniform> params: RoundRowsParams;
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> halves: array<vec2<u32>>;

@compute @workgroup_size(WG)
fn round_rows(@builtin(workgroup_id) group: vec3<u32>, lane: Lane) {
    let factor = row_factor(group.x, lane);
    let quads = params.blocks * 8u;
    for (var i = lane.index; i < quads; i += WG) {
        let v = normed(x[group.x * params.x_stride + i], factor, i);
        halves[group.x * quads + i] = vec2(pack2x16float(v.xy), pack2x16float(v.zw));
    }
}
