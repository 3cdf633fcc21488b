// Activations that eight lanes load for each other (in subgroups of at least eight): software drivers run one load a lane,
// whatever the addresses.
//   x [rows, x_stride] vec4<f32>
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;

fn prepare(place: Place, lane: Lane) {}

// Quad lane % 8 of a block of row r of the workgroup.
fn x_block(place: Place, r: u32, block: u32, lane: u32) -> vec4<f32> {
    return x[x_row(place, r) / 4u + block * 8u + lane % 8u];
}
