// Lower bounds of the attention mass that lists keep, the least over layers: K / (K + D) of the shares of mass_bound.
//   shares  [layers, rows, share_stride] f32: K, negative where nothing is dropped, then the parts of D
//   masses  [rows] f32; 1 where no layer drops anything
// Grid: (rows). Bytes moved: 4 * share_stride * layers a row. CPU reference: src/cpu/mass_merge.rs
struct MassMergeParams { layers: u32, rows: u32, share_stride: u32 }

@group(0) @binding(0) var<uniform> params: MassMergeParams;
@group(0) @binding(1) var<storage, read> shares: array<f32>;
@group(0) @binding(2) var<storage, read_write> masses: array<f32>;

const WG: u32 = 64u;
// Rounding error of D over K in f32, of logits, exponentials and sums.
const SHARE_ERROR: f32 = 1e-4;
// Sums, a division and a product.
const ROUNDING: f32 = 1e-6;
// e^80, at which bounds of blocks are cut off.
const MAX_DROPPED: f32 = 5.5e34;

var<workgroup> least: array<f32, WG>;

@compute @workgroup_size(WG)
fn mass_merge(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    var mass = 1.0;
    for (var layer = lane; layer < params.layers; layer += WG) {
        let at = (layer * params.rows + group.x) * params.share_stride;
        let kept = shares[at];
        var dropped = 0.0;
        for (var i = 1u; i < params.share_stride; i++) {
            dropped += shares[at + i];
        }
        let share = kept / (kept + dropped * (1.0 + SHARE_ERROR)) * (1.0 - ROUNDING);
        // A share that is no number is certain of nothing.
        let least = select(0.0, share, share >= 0.0 && dropped < MAX_DROPPED);
        mass = select(min(mass, least), mass, kept < 0.0);
    }
    least[lane] = mass;
    for (var half = WG / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (lane < half) {
            least[lane] = min(least[lane], least[lane + half]);
        }
    }
    if (lane == 0u) {
        masses[group.x] = least[0];
    }
}
