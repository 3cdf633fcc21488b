// Sum of the branches of NSA (arXiv 2502.11089), each behind a gate of its own: out = sum of sigmoid(gate) * branch.
//   gates  [rows, num_heads, 3] f32, before the sigmoid, of the branches in their order
//   compressed, selected, window  [rows, num_heads, head_dim] f32
//   out    likewise
// One lane takes four elements. Grid: as flat. Bytes moved: 16 * rows * num_heads * head_dim. CPU reference: src/cpu/gate_sum.rs
#import HEAD_DIM = 64
#import flat

struct GateSumParams { heads: u32 }

@group(0) @binding(0) var<uniform> params: GateSumParams;
@group(0) @binding(1) var<storage, read> gates: array<f32>;
@group(0) @binding(2) var<storage, read> compressed: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> selected: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read> window: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read_write> out: array<vec4<f32>>;

const WG: u32 = 64u;
const QUADS: u32 = HEAD_DIM / 4u;

@compute @workgroup_size(WG)
fn gate_sum(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let at = flat_index(group, lane);
    if (at >= params.heads * QUADS) {
        return;
    }
    let gate = at / QUADS * 3u;
    let sum = sigmoid(gates[gate]) * compressed[at] + sigmoid(gates[gate + 1u]) * selected[at];
    out[at] = sum + sigmoid(gates[gate + 2u]) * window[at];
}

// The exponent is at most 0: nothing overflows.
fn sigmoid(x: f32) -> f32 {
    let e = exp(-abs(x));
    return select(e, 1.0, x >= 0.0) / (1.0 + e);
}
