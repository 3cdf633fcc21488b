// Adds the output of a block to the row's residual streams, in place (hyper-connections).
//   block    [rows, width] f32;  gates [rows, STREAMS + STREAMS * STREAMS] as hyper_collapse left them
//   streams  [rows, STREAMS, width]: to[t] = gate[t] * block + sum over f of comb[f, t] * from[f]
// With FIRST = 1 every stream becomes the block's output: the embedding. One lane an element of a row.
// CPU reference: src/cpu/hyper_expand.rs
#import STREAMS = 4
#import FIRST = 0
#import flat
override WG: u32 = 64u;

struct HyperExpandParams { rows: u32, width: u32 }

@group(0) @binding(0) var<uniform> params: HyperExpandParams;
@group(0) @binding(1) var<storage, read> block: array<f32>;
@group(0) @binding(2) var<storage, read> gates: array<f32>;
@group(0) @binding(3) var<storage, read_write> streams: array<f32>;

@compute @workgroup_size(WG)
fn hyper_expand(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let id = flat_index(group, lane);
    let row = id / params.width;
    if (row >= params.rows) {
        return;
    }
    let at = row * STREAMS * params.width + id % params.width;
    let x = block[id];
    if (FIRST == 1u) {
        for (var s = 0u; s < STREAMS; s++) {
            streams[at + s * params.width] = x;
        }
        return;
    }
    var before: array<f32, STREAMS>;
    for (var s = 0u; s < STREAMS; s++) {
        before[s] = streams[at + s * params.width];
    }
    let gate = row * STREAMS * (1u + STREAMS);
    for (var t = 0u; t < STREAMS; t++) {
        var sum = gates[gate + t] * x;
        for (var f = 0u; f < STREAMS; f++) {
            sum = fma(gates[gate + STREAMS + f * STREAMS + t], before[f], sum);
        }
        streams[at + t * params.width] = sum;
    }
}
