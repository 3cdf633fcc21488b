// Positions stay positions.
fn transformed(base: u32, position: u32) -> u32 {
    return position;
}
