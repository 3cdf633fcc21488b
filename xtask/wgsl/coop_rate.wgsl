enable f16;
enable wgpu_cooperative_matrix;
// Products of matrices of f16, added up in f32, from registers: eight sums a subgroup.
//   out [lanes] f32, so that nothing is left out
#import matrices

struct CoopRateParams { rounds: u32, workgroups: u32 }

@group(0) @binding(0) var<uniform> params: CoopRateParams;
@group(0) @binding(1) var<storage, read_write> out: array<f32>;

const WG: u32 = 128u;
const LEFT: u32 = 2u;
const RIGHT: u32 = 4u;
// vec4<f16> of a matrix.
const QUADS: u32 = MATRIX * MATRIX_QUADS;

var<workgroup> factors: array<vec4<f16>, (LEFT + RIGHT) * QUADS>;
var<workgroup> sums: array<f32, WG / SUBGROUP * MATRIX * MATRIX>;

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
    var left: array<MatrixA, LEFT>;
    var right: array<MatrixB, RIGHT>;
    var total: array<MatrixC, LEFT * RIGHT>;
    for (var i = 0u; i < LEFT; i++) {
        left[i] = coopLoadT<MatrixA>(&factors[i * QUADS], MATRIX_QUADS);
    }
    for (var i = 0u; i < RIGHT; i++) {
        right[i] = coopLoadT<MatrixB>(&factors[(LEFT + i) * QUADS], MATRIX_QUADS);
    }
    for (var i = 0u; i < LEFT * RIGHT; i++) {
        total[i] = MatrixC();
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
    coopStore(sum, &sums[subgroup * MATRIX * MATRIX], MATRIX);
    workgroupBarrier();
    out[group.x * WG + lane] = sums[subgroup * MATRIX * MATRIX + lane % SUBGROUP];
}
