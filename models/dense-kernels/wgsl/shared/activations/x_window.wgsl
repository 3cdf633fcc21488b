// Activations through a uniform binding, from which llvmpipe loads for all lanes at once.
//   x [rows, x_stride] vec4<f32>: the rows that the window holds
@group(0) @binding(1) var<uniform> x: array<vec4<f32>, 4096>;

fn prepare(place: Place, lane: Lane) {}

// Quad lane % 8 of a block of row r of the workgroup.
fn x_block(place: Place, r: u32, block: u32, lane: u32) -> vec4<f32> {
    return x[x_row(place, r) / 4u + block * 8u + lane % 8u];
}
