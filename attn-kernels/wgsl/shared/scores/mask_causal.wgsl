// First key that the row at `position` sees; it is the last.
fn first_visible(position: u32) -> u32 {
    return 0u;
}
