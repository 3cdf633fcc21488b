// Shared by the forms of paged_decode without matrices: queries in workgroup memory, and a lane's part of the softmax.
const_assert CHUNKS % CHUNKS_AHEAD == 0u;

// Heads side by side.
var<workgroup> q_tile: array<vec4<f32>, HEAD_DIM * GROUP / 4u>;
// Sum that keys of codes add by being read as 128 more.
var<workgroup> q_zero: array<f32, 4>;

const OWNED: u32 = GROUP * SPANS;

// State of each head over the keys so far: the largest logit that the lane knows of, its sum of exponentials, and eight
// dimensions of its weighted values for each of the lane's SPANS.
struct State { top: vec4<f32>, sum: vec4<f32>, low: array<vec4<f32>, OWNED>, high: array<vec4<f32>, OWNED> }

// Place of a key: its block and head, and its offset in it.
struct Place { block: u32, offset: u32 }

// Every lane of the workgroup calls it.
fn load_q(group: vec3<u32>, lane: u32) {
    let first = rows[params.first_row + group.z].x * params.q_stride + heads_of(group).x * HEAD_DIM;
    for (var i = lane; i < HEAD_DIM * GROUP / 4u; i += WG) {
        let at = first + i * 4u;
        q_tile[i] = vec4(q[at], q[at + 1u], q[at + 2u], q[at + 3u]) * params.scale;
    }
    workgroupBarrier();
    if (KV_ZERO != 0.0) {
        if (lane < GROUP) {
            q_zero[lane] = zero_logit(lane);
        }
        workgroupBarrier();
    }
}

// Logit of a key that is all KV_ZERO, before its factor.
fn zero_logit(head: u32) -> f32 {
    var zero = 0.0;
    for (var i = head * CHUNKS * 2u; i < (head + 1u) * CHUNKS * 2u; i++) {
        zero += dot(q_tile[i], vec4(KV_ZERO));
    }
    return zero;
}
