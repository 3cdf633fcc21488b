// Rows of codes of 8 bits, as quantise leaves them, to f32.
//   codes   [rows, WIDTH / 4] u32
//   scales  [rows] f32
//   x       rows of row_stride f32, WIDTH of them from first on
// One lane makes four elements. Bytes moved: 5 * WIDTH + 4 a row. CPU reference: src/cpu/dequantise.rs
#import WIDTH = 128
#import code = code_fp8
#import flat
override WG: u32 = 64u;

struct DequantiseParams { rows: u32, row_stride: u32, first: u32 }

@group(0) @binding(0) var<uniform> params: DequantiseParams;
@group(0) @binding(1) var<storage, read> codes: array<u32>;
@group(0) @binding(2) var<storage, read> scales: array<f32>;
@group(0) @binding(3) var<storage, read_write> x: array<f32>;

@compute @workgroup_size(WG)
fn dequantise(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let id = flat_index(group, lane);
    let quads = WIDTH / 4u;
    let row = id / quads;
    if (row >= params.rows) {
        return;
    }
    let values = values_of(codes[id]) * scales[row];
    let at = row * params.row_stride + params.first + id % quads * 4u;
    for (var i = 0u; i < 4u; i++) {
        x[at + i] = values[i];
    }
}
