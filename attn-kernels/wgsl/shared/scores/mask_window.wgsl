// First key that the row at `position` sees: the row and the params.window - 1 before it.
fn first_visible(position: u32) -> u32 {
    return max(position + 1u, params.window) - params.window;
}
