// Attention sinks after the fact: out *= 1 / (1 + e^(sink - lse)), for kernels that return lse.
//   lse    [rows, num_heads] f32, natural log;  sinks [num_heads] f32, logits
//   out    [rows, num_heads, head_dim] f32
// Rows from first_row on. A row without keys stays 0. lse keeps leaving the sink out. One lane scales four elements.
// Grid: as flat. Bytes moved: 8 * rows * num_heads * head_dim. CPU reference: src/cpu/apply_sinks.rs
#import numbers
#import HEAD_DIM = 64
#import flat
override WG: u32 = 64u;

struct ApplySinksParams { first_row: u32, rows: u32, num_heads: u32 }

@group(0) @binding(0) var<uniform> params: ApplySinksParams;
@group(0) @binding(1) var<storage, read> lse: array<f32>;
@group(0) @binding(2) var<storage, read> sinks: array<f32>;
@group(0) @binding(3) var<storage, read_write> out: array<vec4<f32>>;

const QUADS: u32 = HEAD_DIM / 4u;

@compute @workgroup_size(WG)
fn apply_sinks(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let id = flat_index(group, lane);
    if (id >= params.rows * params.num_heads * QUADS) {
        return;
    }
    let at = params.first_row * params.num_heads * QUADS + id;
    let head = at / QUADS;
    let above = max(sinks[head % params.num_heads], LOWEST) - max(lse[head], LOWEST);
    // Both exponents are at most 0: nothing overflows, and without keys the factor is 0.
    let factor = select(exp(-above) / (1.0 + exp(-above)), 1.0 / (1.0 + exp(above)), above <= 0.0);
    out[at] *= factor;
}
