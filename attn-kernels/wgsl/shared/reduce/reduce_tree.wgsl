// Reductions over the WG lanes of a workgroup, of VALUES values at a time, in workgroup memory.
struct Lane {
    @builtin(local_invocation_index) index: u32,
}

alias Values = array<f32, VALUES>;

var<workgroup> reduced: array<Values, WG>;

// The largest of each value over all lanes. Every lane of the workgroup calls it.
fn reduce_max(mine: Values, lane: Lane) -> Values {
    reduced[lane.index] = mine;
    for (var half = WG / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (lane.index < half) {
            for (var i = 0u; i < VALUES; i++) {
                reduced[lane.index][i] = max(reduced[lane.index][i], reduced[lane.index + half][i]);
            }
        }
    }
    workgroupBarrier();
    let all = reduced[0];
    workgroupBarrier();
    return all;
}

// The sum of each value over all lanes, in a fixed order. Every lane of the workgroup calls it.
fn reduce_add(mine: Values, lane: Lane) -> Values {
    reduced[lane.index] = mine;
    for (var half = WG / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (lane.index < half) {
            for (var i = 0u; i < VALUES; i++) {
                reduced[lane.index][i] += reduced[lane.index + half][i];
            }
        }
    }
    workgroupBarrier();
    let all = reduced[0];
    workgroupBarrier();
    return all;
}
