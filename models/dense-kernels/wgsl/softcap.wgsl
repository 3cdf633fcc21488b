// x[row, col] = cap * tanh(x[row, col] / cap), in place: bounds logits. One lane an element.
//   x [rows, cols] f32;  8 bytes moved an element
// CPU reference: src/cpu/softcap.rs
#import flat
#import soft_cap
override WG: u32 = 64u;

struct SoftcapParams { rows: u32, cols: u32, cap: f32 }

@group(0) @binding(0) var<uniform> params: SoftcapParams;
@group(0) @binding(1) var<storage, read_write> x: array<f32>;

@compute @workgroup_size(WG)
fn softcap(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let id = flat_index(group, lane);
    if (id >= params.rows * params.cols) {
        return;
    }
    x[id] = soft_cap(x[id], params.cap);
}
