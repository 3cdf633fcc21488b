// Reductions over the WG lanes of a workgroup, of VALUES values at a time: subgroups first, of any size, then one slot
// a subgroup.
struct Lane {
    @builtin(local_invocation_index) index: u32,
    @builtin(subgroup_invocation_id) in_subgroup: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(num_subgroups) subgroups: u32,
}

alias Values = array<f32, VALUES>;

var<workgroup> reduced: array<Values, WG>;

// The largest of each value over all lanes. Every lane of the workgroup calls it.
fn reduce_max(mine: Values, lane: Lane) -> Values {
    var all = mine;
    for (var i = 0u; i < VALUES; i++) {
        all[i] = subgroupMax(all[i]);
    }
    if (lane.in_subgroup == 0u) {
        reduced[lane.subgroup] = all;
    }
    workgroupBarrier();
    all = reduced[0];
    for (var s = 1u; s < lane.subgroups; s++) {
        for (var i = 0u; i < VALUES; i++) {
            all[i] = max(all[i], reduced[s][i]);
        }
    }
    workgroupBarrier();
    return all;
}

// The sum of each value over all lanes, in a fixed order. Every lane of the workgroup calls it.
fn reduce_add(mine: Values, lane: Lane) -> Values {
    var all = mine;
    for (var i = 0u; i < VALUES; i++) {
        all[i] = subgroupAdd(all[i]);
    }
    if (lane.in_subgroup == 0u) {
        reduced[lane.subgroup] = all;
    }
    workgroupBarrier();
    all = reduced[0];
    for (var s = 1u; s < lane.subgroups; s++) {
        for (var i = 0u; i < VALUES; i++) {
            all[i] += reduced[s][i];
        }
    }
    workgroupBarrier();
    return all;
}
