// Positions become places in a ragged buffer, in which the row's own begin at `base`.
fn transformed(base: u32, position: u32) -> u32 {
    return base + position;
}
