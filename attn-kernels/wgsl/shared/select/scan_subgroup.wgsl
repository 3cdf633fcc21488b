// Prefix sums over the WG lanes of a workgroup: subgroups first, of any size that divides WG, then one slot a subgroup.
struct Lane {
    @builtin(subgroup_invocation_id) in_subgroup: u32,
    @builtin(subgroup_size) size: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(num_subgroups) subgroups: u32,
}

var<workgroup> scanned: array<u32, WG>;
// Least and largest, by subgroup: of 4 to 128 lanes, as WGSL has them.
const MOST_LANES: u32 = 128u;
var<workgroup> extents: array<vec2<u32>, WG / 4u>;

// The lane's place in the order of the sums, 0 to WG - 1; WGSL does not tie it to the local index.
fn place_of(lane: Lane) -> u32 {
    return lane.subgroup * lane.size + lane.in_subgroup;
}

// `before` is the sum over the lanes of lower place, `total` that over all.
struct Scan { before: u32, total: u32 }

// Every lane of the workgroup calls it. The last lane of a subgroup has its sum: subgroupAdd is wrong on some drivers
// (docs/kernels.md).
fn scan(mine: u32, lane: Lane) -> Scan {
    let through = subgroupInclusiveAdd(mine);
    if (lane.in_subgroup + 1u == lane.size) {
        scanned[lane.subgroup] = through;
    }
    workgroupBarrier();
    var before = through - mine;
    var total = 0u;
    for (var s = 0u; s < lane.subgroups; s++) {
        before += select(0u, scanned[s], s < lane.subgroup);
        total += scanned[s];
    }
    workgroupBarrier();
    return Scan(before, total);
}

// Least and largest of what the lanes have. Every lane of the workgroup calls it.
fn extremes(least: u32, most: u32, lane: Lane) -> vec2<u32> {
    var mine = vec2(least, most);
    // Control flow by the subgroup's size would not count as uniform.
    for (var stride = 1u; stride < MOST_LANES; stride *= 2u) {
        let other = subgroupShuffleXor(mine, stride);
        mine = select(mine, vec2(min(mine.x, other.x), max(mine.y, other.y)), stride < lane.size);
    }
    if (lane.in_subgroup == 0u) {
        extents[lane.subgroup] = mine;
    }
    workgroupBarrier();
    for (var s = 0u; s < lane.subgroups; s++) {
        mine = vec2(min(mine.x, extents[s].x), max(mine.y, extents[s].y));
    }
    workgroupBarrier();
    return mine;
}
