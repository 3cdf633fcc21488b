// Shared by matmuls over activations in f32 or f16: parameters and bindings.
struct MatmulParams {
    rows: u32, // of x; of routed rows, tiles
    cols: u32, // of one part
    blocks: u32,
    x_stride: u32, // in vec4
    y_stride: u32,
    y_offset: u32,
    eps: f32, // of the norm on the way in, if there is one
    x_div: u32, // of several matrices: see the rows modules
    matrices: u32, // side by side in wq and ws
    first_matrix: u32,
    split_blocks: u32, // along k, of a split of matmul_coop
}

@group(0) @binding(0) var<uniform> params: MatmulParams;
const WQ: u32 = 2u;
const WS: u32 = 3u;
#import planes = planes_buffers
@group(0) @binding(4) var<storage, read_write> y: array<f32>;
