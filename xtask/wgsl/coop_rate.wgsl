enable f16;
enable wgpu_cooperative_matrix;
// Products of 16 x 16 matrices of f16, added up in f32, from registers: eight sums a subgroup of 32 lanes.
//   out [lanes] f32, so that nothing is left out
struct CoopRateParams { rounds: u32 }

@group(0) @binding(0) var<uniform> params: CoopRateParams;
@group(0) @binding(1) var<storage, read_write> out: array<f32>;

const WG: u32 = 128u;
const LEFT: u32 = 2u;
const RIGHT: u32 = 4u;
// vec4<f16> of a matrix.
const QUADS: u32 = 64u;

var<workgroup> factors: array<vec4<f16>, (LEFT + RIGHT) * QUADS>;
var<workgroup> sums: array<f32, WG * 8u>;

@compute @workgroup_size(WG)
fn coop_rate(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
    @builtin(subgroup_id) subgroup: u32,
) {
    for (var i = lane; i < (LEFT + RIGHT) * QUADS; i += WG) {
        let x = f32((i * 2654435761u) >> 20u) / 65536.0;
        factors[i] = vec4<f16>(vec4(x, -x, x * 0.5, 0.01));
    }
    workgroupBarrier();
    var left: array<coop_mat16x16<f16, A>, LEFT>;
    var right: array<coop_mat16x16<f16, B>, RIGHT>;
    var total: array<coop_mat16x16<f32, C>, LEFT * RIGHT>;
    for (var i = 0u; i < LEFT; i++) {
        left[i] = coopLoadT<coop_mat16x16<f16, A>>(&factors[i * QUADS], 4u);
    }
    for (var i = 0u; i < RIGHT; i++) {
        right[i] = coopLoadT<coop_mat16x16<f16, B>>(&factors[(LEFT + i) * QUADS], 4u);
    }
    for (var i = 0u; i < LEFT * RIGHT; i++) {
        total[i] = coop_mat16x16<f32, C>();
    }
    for (var round = 0u; round < params.rounds; round++) {
        for (var i = 0u; i < LEFT; i++) {
            for (var j = 0u; j < RIGHT; j++) {
                total[i * RIGHT + j] = coopMultiplyAdd(left[i], right[j], total[i * RIGHT + j]);
            }
        }
    }
    var sum = total[0];
    for (var i = 1u; i < LEFT * RIGHT; i++) {
        sum = sum + total[i];
    }
    coopStore(sum, &sums[subgroup * 256u], 16u);
    workgroupBarrier();
    out[group.x * WG + lane] = sums[subgroup * 256u + lane % 32u];
}
