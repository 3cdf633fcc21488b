// Turns of a loop that no compiler unrolls: `rows`, which is not 0, comes from a storage buffer. A number of the uniform block
// would not do: llvmpipe puts its value into the text at every dispatch, and compiles that. Stands in for trips_known where a
// driver's compiler takes far longer for long texts.
fn trips(n: u32, rows: u32) -> u32 {
    return n * min(rows, 1u);
}
