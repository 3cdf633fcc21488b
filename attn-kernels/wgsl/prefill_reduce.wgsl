// Split-KV merge of prefill: puts the parts of attention together that paged_prefill leaves where it cuts the keys of its rows,
// by their log-sum-exps.
//   part_out [parts, part_rows, head_dim] f32 (a row is one head of one query);  part_lse [parts, part_rows] f32, natural log
//   out, lse: rows first_row to first_row + rows - 1 of the same rows
// An lse of an infinity is that of no keys; of none in all parts the result is 0 and minus infinity. A lane reduces 16 bytes of
// a row, a workgroup as many rows as it has lanes for. Grid: (ceil(rows / ROWS)).
// Bytes moved: 4 * (parts + 1) * rows * (head_dim + 1). CPU reference: src/cpu/prefill_reduce.rs
#import numbers
#import HEAD_DIM = 64
const WG: u32 = 256u;
const QUADS: u32 = HEAD_DIM / 4u;
const ROWS: u32 = WG / QUADS;

struct PrefillReduceParams { rows: u32, first_row: u32, parts: u32, part_rows: u32, neg_inf: f32 }

@group(0) @binding(0) var<uniform> params: PrefillReduceParams;
@group(0) @binding(1) var<storage, read> part_out: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> part_lse: array<f32>;
@group(0) @binding(3) var<storage, read_write> out: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> lse: array<f32>;

fn usable(lse: f32) -> f32 {
    return select(lse, LOWEST, abs(lse) >= -LOWEST);
}

@compute @workgroup_size(WG)
fn prefill_reduce(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let index = (group.x + group.y * 65535u) * ROWS + lane / QUADS;
    if (lane >= ROWS * QUADS || index >= params.rows) {
        return;
    }
    let row = params.first_row + index;
    let quad = lane % QUADS;
    var top = LOWEST;
    for (var part = 0u; part < params.parts; part++) {
        top = max(top, usable(part_lse[part * params.part_rows + row]));
    }
    var sum = vec4(0.0);
    var total = 0.0;
    for (var part = 0u; part < params.parts; part++) {
        let at = part * params.part_rows + row;
        let of_part = usable(part_lse[at]);
        let weight = select(exp(of_part - top), 0.0, of_part == LOWEST);
        sum += weight * part_out[at * QUADS + quad];
        total += weight;
    }
    let none = total == 0.0;
    out[row * QUADS + quad] = select(sum / total, vec4(0.0), none);
    if (quad == 0u) {
        lse[row] = select(top + log(total), params.neg_inf, none);
    }
}
