// Shared by matmuls over codes of 8 bits: parameters, bindings, and the value of a block.
struct MatmulInt8Params {
    rows: u32,
    cols: u32, // of one part
    blocks: u32,
    y_stride: u32,
    y_offset: u32,
}

@group(0) @binding(0) var<uniform> params: MatmulInt8Params;
@group(0) @binding(1) var<storage, read> x: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> scales: array<vec2<f32>>;
const WQ: u32 = 3u;
const WS: u32 = 4u;
#import planes = planes_buffers
@group(0) @binding(5) var<storage, read_write> y: array<f32>;

// A sum plus one block: `dots` of its halves (of the whole block where these have one scale), `d` from quantize_rows.
fn add_block(sum: f32, b: Block, dots: array<i32, 2>, d: vec2<f32>) -> f32 {
    var out = fma(scale(b, 0u) * d.x, f32(dots[0]), sum);
    if (HALVES == 2u) {
        out = fma(scale(b, 1u) * d.x, f32(dots[1]), out);
    }
    if (OFFSET) {
        out = fma(offset(b), d.y, out);
    }
    return out;
}
