// Prefix sums over the WG lanes of a workgroup, in workgroup memory.
struct Lane {
    @builtin(local_invocation_index) index: u32,
}

var<workgroup> scanned: array<u32, 2u * WG>;

// The lane's place in the order of the sums, 0 to WG - 1.
fn place_of(lane: Lane) -> u32 {
    return lane.index;
}

// `before` is the sum over the lanes of lower place, `total` that over all.
struct Scan { before: u32, total: u32 }

// Every lane of the workgroup calls it.
fn scan(mine: u32, lane: Lane) -> Scan {
    scanned[lane.index] = mine;
    var side = 0u;
    for (var step = 1u; step < WG; step *= 2u) {
        workgroupBarrier();
        var sum = scanned[side + lane.index];
        if (lane.index >= step) {
            sum += scanned[side + lane.index - step];
        }
        side = WG - side;
        scanned[side + lane.index] = sum;
    }
    workgroupBarrier();
    let result = Scan(scanned[side + lane.index] - mine, scanned[side + WG - 1u]);
    workgroupBarrier();
    return result;
}

// Least and largest of what the lanes have. Every lane of the workgroup calls it.
fn extremes(least: u32, most: u32, lane: Lane) -> vec2<u32> {
    scanned[lane.index] = least;
    scanned[WG + lane.index] = most;
    for (var half = WG / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (lane.index < half) {
            scanned[lane.index] = min(scanned[lane.index], scanned[lane.index + half]);
            scanned[WG + lane.index] = max(scanned[WG + lane.index], scanned[WG + lane.index + half]);
        }
    }
    workgroupBarrier();
    let all = vec2(scanned[0], scanned[WG]);
    workgroupBarrier();
    return all;
}
