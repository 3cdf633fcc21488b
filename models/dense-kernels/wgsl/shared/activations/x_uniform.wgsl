// Activations at one address for all lanes: a broadcast load on GPUs.
//   x [rows, x_stride] vec4<f32>
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;

fn prepare(place: Place, lane: Lane) {}

// Eight activations of row r of the workgroup from k = 8 * octet on.
fn x_octet(place: Place, r: u32, octet: u32, lane: u32) -> array<vec4<f32>, 2> {
    let at = x_row(place, r) / 4u + octet * 2u;
    return array(x[at], x[at + 1u]);
}
