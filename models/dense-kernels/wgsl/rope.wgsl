// Rotates 2 * pairs dimensions of every query and key head, in place.
//   x  rows of stride f32, `heads` heads of HEAD_DIM, what turns of them from `first` on
//   cs [rows, pairs] (cos, sin) of each row's position, made on the host in double precision
// Turns back with `back` 1. INTERLEAVED = 1 pairs dimensions (2i, 2i + 1), else (i, i + pairs). One lane turns one pair.
// CPU reference: src/cpu/rope.rs
#import HEAD_DIM = 64
#import INTERLEAVED = 0
#import flat
override WG: u32 = 64u;

struct RopeParams {
    rows: u32,
    heads: u32,
    stride: u32,
    pairs: u32,
    first: u32,
    back: u32,
}

@group(0) @binding(0) var<uniform> params: RopeParams;
@group(0) @binding(1) var<storage, read> cs: array<vec2<f32>>;
@group(0) @binding(2) var<storage, read_write> x: array<f32>;

@compute @workgroup_size(WG)
fn rope(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let id = flat_index(group, lane);
    let pair = id % params.pairs;
    let head = id / params.pairs % params.heads;
    let row = id / params.pairs / params.heads;
    if (row >= params.rows) {
        return;
    }
    let base = row * params.stride + params.first + head * HEAD_DIM;
    var a = base + pair;
    var b = a + params.pairs;
    if (INTERLEAVED == 1u) {
        a = base + 2u * pair;
        b = a + 1u;
    }
    var turn = cs[row * params.pairs + pair];
    if (params.back == 1u) {
        turn.y = -turn.y;
    }
    let u = x[a];
    let v = x[b];
    x[a] = u * turn.x - v * turn.y;
    x[b] = v * turn.x + u * turn.y;
}
