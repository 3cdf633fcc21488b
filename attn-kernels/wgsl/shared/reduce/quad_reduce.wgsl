// Reductions of a vec4 over the WG lanes of a workgroup, in workgroup memory: eight lanes first, then all read the eight.
// Two barriers instead of the seven of a binary tree. Between two calls stands another barrier.
struct Lane {
    @builtin(local_invocation_index) index: u32,
}

const PARTS: u32 = 8u;
const PART: u32 = WG / PARTS;

var<workgroup> mine_of: array<vec4<f32>, WG>;
var<workgroup> reduced: array<vec4<f32>, PARTS>;

// The largest over all lanes. Every lane of the workgroup calls it.
fn reduce_max(mine: vec4<f32>, lane: Lane) -> vec4<f32> {
    mine_of[lane.index] = mine;
    workgroupBarrier();
    if (lane.index < PARTS) {
        var most = mine_of[lane.index * PART];
        for (var i = 1u; i < trips(PART, lane.index); i++) {
            most = max(most, mine_of[lane.index * PART + i]);
        }
        reduced[lane.index] = most;
    }
    workgroupBarrier();
    var all = reduced[0];
    for (var i = 1u; i < trips(PARTS, lane.index); i++) {
        all = max(all, reduced[i]);
    }
    return all;
}

// The sum over all lanes, in a fixed order. Every lane of the workgroup calls it.
fn reduce_add(mine: vec4<f32>, lane: Lane) -> vec4<f32> {
    mine_of[lane.index] = mine;
    workgroupBarrier();
    if (lane.index < PARTS) {
        var sum = mine_of[lane.index * PART];
        for (var i = 1u; i < trips(PART, lane.index); i++) {
            sum += mine_of[lane.index * PART + i];
        }
        reduced[lane.index] = sum;
    }
    workgroupBarrier();
    var all = reduced[0];
    for (var i = 1u; i < trips(PARTS, lane.index); i++) {
        all += reduced[i];
    }
    return all;
}
