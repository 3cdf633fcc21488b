// Random numbers, never zeros, of one kind: 0 f32 in -1..1, 1 pairs of f16 in -1..1, 2 codes of 8 bits with scales in
// -2..2 between them.
//   out [words] u32
struct FillParams { words: u32, seed: u32, kind: u32, workgroups: u32 }

@group(0) @binding(0) var<uniform> params: FillParams;
@group(0) @binding(1) var<storage, read_write> out: array<u32>;

const WG: u32 = 256u;

// A bijection that spreads every bit.
fn mix(v: u32) -> u32 {
    var x = v + 0x9e3779b9u;
    x = (x ^ (x >> 16u)) * 0x21f0aaadu;
    x = (x ^ (x >> 15u)) * 0x735a2d97u;
    return x ^ (x >> 15u);
}

@compute @workgroup_size(WG)
fn fill(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    for (var i = id.x; i < params.words; i += groups.x * WG) {
        let bits = mix(i ^ params.seed);
        if (params.kind == 2u) {
            // Neither an f32 nor an fp8 without its second bit is infinite or NaN.
            out[i] = bits & 0xbfbfbfbfu;
        } else if (params.kind == 1u) {
            let pair = vec2<f32>(vec2(bits & 0xffffu, bits >> 16u)) / 32768.0 - vec2(1.0);
            out[i] = pack2x16float(pair);
        } else {
            out[i] = bitcast<u32>(f32(bits >> 8u) / 8388608.0 - 1.0);
        }
    }
}
