// Reads a buffer once, front to back: the rate that no kernel of attention can pass.
//   data [quads] vec4<u32>;  out [lanes] u32, so that nothing is left out
struct StreamReadParams { quads: u32, workgroups: u32 }

@group(0) @binding(0) var<uniform> params: StreamReadParams;
@group(0) @binding(1) var<storage, read> data: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read_write> out: array<u32>;

const WG: u32 = 256u;
// Loads in flight a lane.
const AHEAD: u32 = 4u;

@compute @workgroup_size(WG)
fn stream_read(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let stride = groups.x * WG;
    var sum = vec4<u32>();
    // The host makes quads a multiple of AHEAD * stride.
    for (var i = id.x; i < params.quads; i += AHEAD * stride) {
        let a = data[i];
        let b = data[i + stride];
        let c = data[i + 2u * stride];
        let d = data[i + 3u * stride];
        sum ^= (a + b) ^ (c + d);
    }
    out[id.x] = sum.x ^ sum.y ^ sum.z ^ sum.w;
}
