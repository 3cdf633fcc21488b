// Whether any lane of the workgroup, which is one subgroup, found something.
fn any_of(lane: u32, found: bool) -> bool {
    return subgroupAny(found);
}
