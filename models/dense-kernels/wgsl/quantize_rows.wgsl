// Rows as codes of 8 bits by blocks of 32, as they are or after an RMS norm: v = d * code, d = max |v| / 127.
//   x [rows, 4 * x_stride] f32;  codes [rows, blocks, 8] u32, element i in byte i % 4 of word i / 4, signed
//   scales [rows, blocks] vec2<f32>: d, and d times the sum of the codes
// A lane owns four elements, and eight lanes a block. With a norm every workgroup of a row takes its sum of squares anew: that
// is cheaper than one more dispatch. Elements that are no finite numbers make their block's scale NaN.
// Bytes moved: 4 an element read (with a norm, again for each 1,024 elements of the row), 1.25 written.
// Grid: (blocks / 32, rows). CPU reference: src/cpu/quantize_rows.rs
#import WG = 256
#import reduce = reduce_tree
// Binding of the norm's weight.
#import WEIGHT = 4
#import norm = norm_none
#import code_scale

const VALUES: u32 = 1u;

struct QuantizeRowsParams {
    rows: u32,
    blocks: u32,
    x_stride: u32, // in vec4
    eps: f32,
}

@group(0) @binding(0) var<uniform> params: QuantizeRowsParams;
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> codes: array<u32>;
@group(0) @binding(3) var<storage, read_write> scales: array<vec2<f32>>;

// Largest magnitude of a lane's elements (negative where one is not finite), and sum of its codes.
var<workgroup> magnitudes: array<f32, WG>;
var<workgroup> code_sums: array<i32, WG>;

@compute @workgroup_size(WG)
fn quantize_rows(@builtin(workgroup_id) group: vec3<u32>, lane: Lane) {
    let row = group.y;
    let factor = row_factor(row, lane);
    let quads = params.blocks * 8u;
    let quad = group.x * WG + lane.index;
    let at = min(quad, quads - 1u);
    let v = normed(x[row * params.x_stride + at], factor, at);
    let size = abs(v);
    let finite = all(size <= vec4(LARGEST));
    magnitudes[lane.index] = select(-1.0, max(max(size.x, size.y), max(size.z, size.w)), finite);
    workgroupBarrier();
    let first = lane.index / 8u * 8u;
    var largest = 0.0;
    var all_finite = true;
    for (var i = 0u; i < 8u; i++) {
        largest = max(largest, magnitudes[first + i]);
        all_finite = all_finite && magnitudes[first + i] >= 0.0;
    }
    let inverse = codes_a_unit(largest);
    let code = vec4<i32>(round(v * inverse));
    code_sums[lane.index] = code.x + code.y + code.z + code.w;
    workgroupBarrier();
    if (quad >= quads) {
        return;
    }
    codes[row * quads + quad] = pack4xI8(code);
    if (lane.index == first) {
        var sum = 0;
        for (var i = 0u; i < 8u; i++) {
            sum += code_sums[first + i];
        }
        scales[row * params.blocks + quad / 8u] = code_scale(largest, all_finite, sum);
    }
}
