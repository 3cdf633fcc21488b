// Rows of f32 to codes of 8 bits.
//   x       rows of row_stride f32, WIDTH of them from first on
//   codes   [rows, WIDTH / 4] u32
//   scales  [rows] f32, where the scale module has one for each
// A code is the nearest to x / scale. One workgroup a row. Grid: n folded.
// Bytes moved: 5 * WIDTH + 4 a row. CPU reference: src/cpu/quantise.rs
#import WIDTH = 128
#import code = code_fp8
#import scale = scale_given

struct QuantiseParams { rows: u32, row_stride: u32, first: u32, scale: f32 }

@group(0) @binding(0) var<uniform> params: QuantiseParams;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read_write> codes: array<u32>;
@group(0) @binding(3) var<storage, read_write> scales: array<f32>;

const WG: u32 = 64u;
const VALUES: u32 = 1u;
#import reduce_tree

@compute @workgroup_size(WG)
fn quantise(@builtin(workgroup_id) group: vec3<u32>, lane: Lane) {
    let row = group.y * 65535u + group.x;
    if (row >= params.rows) {
        return;
    }
    let from_row = row * params.row_stride + params.first;
    var amax: Values;
    for (var i = lane.index; BY_ROW && i < WIDTH; i += WG) {
        amax[0] = max(amax[0], abs(x[from_row + i]));
    }
    let scale = scale_of(reduce_max(amax, lane)[0]);
    for (var i = lane.index; i < WIDTH / 4u; i += WG) {
        let at = from_row + i * 4u;
        let four = vec4(x[at], x[at + 1u], x[at + 2u], x[at + 3u]);
        codes[row * (WIDTH / 4u) + i] = codes_of(four / scale);
    }
    if (lane.index == 0u) {
        scales[row] = scale;
    }
}
