// Selected indices through a transform, in ascending order of index, -1 behind them.
fn out_put(row: u32, base: u32, rank: u32, index: u32) {
    out[row * params.out_stride + rank] = transformed(base, index);
}

// By every lane, `place` 0 to WG - 1.
fn out_finish(row: u32, count: u32, place: u32) {
    for (var i = count + place; i < params.out_stride; i += WG) {
        out[row * params.out_stride + i] = 0xffffffffu;
    }
}
