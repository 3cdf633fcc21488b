enable f16;
enable wgpu_cooperative_matrix;
// The number of lanes of the subgroups that multiply cooperative matrices here: drivers with several sizes choose one, for a
// workgroup of some lanes and for what it does.
//   lanes [1] u32, of which products of zeros are a part, so that nothing is left out
#import matrices

struct MatrixLanesParams { zero: f32 }

@group(0) @binding(0) var<uniform> params: MatrixLanesParams;
@group(0) @binding(1) var<storage, read_write> lanes: array<u32>;

const WG: u32 = 128u;

var<workgroup> factors: array<vec4<f16>, 64>;
var<workgroup> sums: array<f32, WG / SUBGROUP * MATRIX * MATRIX>;

@compute @workgroup_size(WG)
fn matrix_lanes(
    @builtin(local_invocation_index) lane: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(subgroup_size) size: u32,
) {
    if (lane < 64u) {
        factors[lane] = vec4<f16>(vec4(params.zero));
    }
    workgroupBarrier();
    let a = coopLoadT<MatrixA>(&factors[0], MATRIX_QUADS);
    let b = coopLoad<MatrixB>(&factors[0], MATRIX_QUADS);
    let sum = coopMultiplyAdd(a, b, MatrixC());
    coopStore(sum, &sums[subgroup % (WG / SUBGROUP) * MATRIX * MATRIX], MATRIX);
    workgroupBarrier();
    if (lane == 0u) {
        lanes[0] = size + u32(sums[0]);
    }
}
