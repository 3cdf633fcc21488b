// Index of a lane in a one-dimensional grid of any length: see `kernel::flat_grid`.
fn flat_index(group: vec3<u32>, lane: u32) -> u32 {
    return (group.y * 65535u + group.x) * WG + lane;
}
