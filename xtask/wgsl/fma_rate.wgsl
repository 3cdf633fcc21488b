// Multiply-adds of f32 from registers, in eight independent chains a lane. A round is eight of each, in a row: where a driver
// does not unroll the loop, its own instructions count for little.
//   out [lanes] f32, so that nothing is left out
struct FmaRateParams { rounds: u32, factor: f32, workgroups: u32 }

@group(0) @binding(0) var<uniform> params: FmaRateParams;
@group(0) @binding(1) var<storage, read_write> out: array<f32>;

struct Chains { a: vec4<f32>, b: vec4<f32> }

fn twice(chains: Chains, factor: vec4<f32>) -> Chains {
    let a = fma(chains.a, factor, vec4(0.25));
    let b = fma(chains.b, factor, vec4(0.5));
    return Chains(fma(a, factor, vec4(0.25)), fma(b, factor, vec4(0.5)));
}

@compute @workgroup_size(256)
fn fma_rate(@builtin(global_invocation_id) id: vec3<u32>) {
    let factor = vec4(params.factor);
    let start = f32(id.x % 1024u) * 0.001;
    var chains = Chains(vec4(start), vec4(start + 0.1));
    for (var i = 0u; i < params.rounds; i++) {
        chains = twice(twice(twice(twice(chains, factor), factor), factor), factor);
    }
    let sum = chains.a + chains.b;
    out[id.x] = sum.x + sum.y + sum.z + sum.w;
}
