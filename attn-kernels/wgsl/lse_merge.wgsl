// Split-KV merge of two parts: merges attention over two disjoint sets of keys, in place into the first.
//   a_out, b_out  [rows, head_dim] f32 (a row is one head of one query);  a_lse, b_lse [rows] f32, natural log
// Merges `rows` rows from first_row on.
// An lse of +inf counts as -inf; with both -inf the result is 0 and -inf. A lane merges 16 bytes of a row, a workgroup as many
// rows as it has lanes for. Grid: (ceil(rows / ROWS)).
// Bytes moved: 12 * rows * (head_dim + 1). CPU reference: src/cpu/lse_merge.rs
#import numbers
#import HEAD_DIM = 64
const WG: u32 = 256u;
const QUADS: u32 = HEAD_DIM / 4u;
const ROWS: u32 = WG / QUADS;

struct LseMergeParams { rows: u32, neg_inf: f32, first_row: u32 }

@group(0) @binding(0) var<uniform> params: LseMergeParams;
@group(0) @binding(1) var<storage, read> b_out: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> b_lse: array<f32>;
@group(0) @binding(3) var<storage, read_write> a_out: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> a_lse: array<f32>;

fn usable(lse: f32) -> f32 {
    return select(lse, LOWEST, abs(lse) >= -LOWEST);
}

@compute @workgroup_size(WG)
fn lse_merge(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let index = (group.x + group.y * 65535u) * ROWS + lane / QUADS;
    let inside = lane < ROWS * QUADS && index < params.rows;
    let row = params.first_row + index;
    let safe = params.first_row + min(index, params.rows - 1u);
    let at = safe * QUADS + lane % QUADS;
    let a_part = a_out[at];
    let b_part = b_out[at];
    let a = usable(a_lse[safe]);
    let b = usable(b_lse[safe]);
    let top = max(a, b);
    let none = a == LOWEST && b == LOWEST;
    let wa = select(exp(a - top), 0.0, a == LOWEST);
    let wb = select(exp(b - top), 0.0, b == LOWEST);
    let total = wa + wb;
    // Every lane has read a_lse before the first of a row writes it.
    workgroupBarrier();
    if (!inside) {
        return;
    }
    a_out[at] = select((wa * a_part + wb * b_part) / total, vec4(0.0), none);
    if (lane % QUADS == 0u) {
        a_lse[row] = select(top + log(total), params.neg_inf, none);
    }
}
