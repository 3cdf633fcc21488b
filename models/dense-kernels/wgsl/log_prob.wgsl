// Negative log likelihood of one target a row, in nats.
//   logits [rows, vocab] f32;  targets [rows] u32;  out [rows] f32
// A workgroup a row. CPU reference: src/cpu/log_prob.rs
override WG: u32 = 256u;

struct LogProbParams { rows: u32, vocab: u32 }

@group(0) @binding(0) var<uniform> params: LogProbParams;
@group(0) @binding(1) var<storage, read> logits: array<f32>;
@group(0) @binding(2) var<storage, read> targets: array<u32>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;

var<workgroup> lanes: array<f32, WG>;

@compute @workgroup_size(WG)
fn log_prob(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let base = group.x * params.vocab;
    var top = logits[base];
    for (var i = lane; i < params.vocab; i += WG) {
        top = max(top, logits[base + i]);
    }
    lanes[lane] = top;
    for (var half = WG / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (lane < half) {
            lanes[lane] = max(lanes[lane], lanes[lane + half]);
        }
    }
    workgroupBarrier();
    top = lanes[0];
    workgroupBarrier();
    var sum = 0.0;
    for (var i = lane; i < params.vocab; i += WG) {
        sum += exp(logits[base + i] - top);
    }
    lanes[lane] = sum;
    for (var half = WG / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (lane < half) {
            lanes[lane] += lanes[lane + half];
        }
    }
    workgroupBarrier();
    if (lane == 0u) {
        out[group.x] = top + log(lanes[0]) - logits[base + targets[group.x]];
    }
}
