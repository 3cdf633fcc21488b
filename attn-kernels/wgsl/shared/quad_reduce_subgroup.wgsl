// Reductions of a vec4 over the WG lanes of a workgroup: subgroups first, of any size from 4, then one slot a subgroup.
// Between two calls stands another barrier.
struct Lane {
    @builtin(local_invocation_index) index: u32,
    @builtin(subgroup_invocation_id) in_subgroup: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(num_subgroups) subgroups: u32,
}

var<workgroup> reduced: array<vec4<f32>, WG / 4u>;

// The largest over all lanes. Every lane of the workgroup calls it.
fn reduce_max(mine: vec4<f32>, lane: Lane) -> vec4<f32> {
    let most = subgroupMax(mine);
    if (lane.in_subgroup == 0u) {
        reduced[lane.subgroup] = most;
    }
    workgroupBarrier();
    var all = reduced[0];
    for (var s = 1u; s < lane.subgroups; s++) {
        all = max(all, reduced[s]);
    }
    return all;
}

// The sum over all lanes, in a fixed order. Every lane of the workgroup calls it.
fn reduce_add(mine: vec4<f32>, lane: Lane) -> vec4<f32> {
    let sum = subgroupAdd(mine);
    if (lane.in_subgroup == 0u) {
        reduced[lane.subgroup] = sum;
    }
    workgroupBarrier();
    var all = reduced[0];
    for (var s = 1u; s < lane.subgroups; s++) {
        all += reduced[s];
    }
    return all;
}
