// Shared by matmuls over codes of 8 bits: parameters and bindings.
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
