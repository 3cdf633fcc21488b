// Positions become physical slots, through the page table that begins at entry `base`.
fn transformed(base: u32, position: u32) -> u32 {
    return table[base + position / params.page_size] * params.page_size + position % params.page_size;
}
