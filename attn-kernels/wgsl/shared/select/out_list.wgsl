// Selected indices as lists: a count, then the indices in ascending order; `copies` equal lists a row, one behind the
// other.
fn out_put(row: u32, base: u32, rank: u32, index: u32) {
    for (var copy = 0u; copy < params.copies; copy++) {
        out[(row * params.copies + copy) * params.out_stride + 1u + rank] = index;
    }
}

// By every lane, `place` 0 to WG - 1.
fn out_finish(row: u32, count: u32, place: u32) {
    for (var copy = place; copy < params.copies; copy += WG) {
        out[(row * params.copies + copy) * params.out_stride] = count;
    }
}
