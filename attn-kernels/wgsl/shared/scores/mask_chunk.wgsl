// First key that the row at `position` sees: its chunk of params.window tokens starts there.
fn first_visible(position: u32) -> u32 {
    return position - position % params.window;
}
