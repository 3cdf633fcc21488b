// Lists of selected blocks alone in their buffer.
fn lists_at() -> u32 {
    return 0u;
}
