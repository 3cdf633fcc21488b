// Multiply-adds of f32 from registers, in eight independent chains a lane.
//   out [lanes] f32, so that nothing is left out
struct FmaRateParams { rounds: u32, factor: f32, pad0: u32, pad1: u32 }

@group(0) @binding(0) var<uniform> params: FmaRateParams;
@group(0) @binding(1) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(256)
fn fma_rate(@builtin(global_invocation_id) id: vec3<u32>) {
    let factor = vec4(params.factor);
    let start = f32(id.x % 1024u) * 0.001;
    var a = vec4(start);
    var b = vec4(start + 0.1);
    for (var i = 0u; i < params.rounds; i++) {
        a = fma(a, factor, vec4(0.25));
        b = fma(b, factor, vec4(0.5));
    }
    let sum = a + b;
    out[id.x] = sum.x + sum.y + sum.z + sum.w;
}
