// Whether any lane of the workgroup, which is several subgroups, found something. The same for all lanes; a barrier comes before
// the next call.
var<workgroup> found_by: array<u32, WG>;

fn any_of(lane: u32, found: bool) -> bool {
    found_by[lane] = select(0u, 1u, found);
    workgroupBarrier();
    var any = false;
    for (var i = 0u; i < WG; i++) {
        any |= found_by[i] == 1u;
    }
    return any;
}
