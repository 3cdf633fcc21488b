// Activations loaded by eight lanes and broadcast in the subgroup (of at least eight lanes): software drivers run one
// load a lane, whatever the addresses.
//   x [rows, 4 * x_stride] f32
@group(0) @binding(1) var<storage, read> x: array<f32>;

fn prepare(place: Place, lane: Lane) {}

// Eight activations of row r of the workgroup from k = 8 * octet on.
fn x_octet(place: Place, r: u32, octet: u32, lane: u32) -> array<vec4<f32>, 2> {
    let v = x[x_row(place, r) + octet * 8u + lane % 8u];
    let low = vec4(subgroupBroadcast(v, 0u), subgroupBroadcast(v, 1u), subgroupBroadcast(v, 2u), subgroupBroadcast(v, 3u));
    let high = vec4(subgroupBroadcast(v, 4u), subgroupBroadcast(v, 5u), subgroupBroadcast(v, 6u), subgroupBroadcast(v, 7u));
    return array(low, high);
}
