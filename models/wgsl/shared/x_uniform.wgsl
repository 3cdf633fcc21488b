// Activations at one address for all lanes: a broadcast load on GPUs.
//   x [rows, x_stride] vec4<f32>
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;

fn prepare(row0: u32, lane: Lane) {}

// Eight activations of row r of the workgroup from k = 8 * octet on.
fn x_octet(row0: u32, r: u32, octet: u32, lane: u32) -> array<vec4<f32>, 2> {
    let at = min(row0 + r, params.rows - 1u) * params.x_stride + octet * 2u;
    return array(x[at], x[at + 1u]);
}
