// Turns of a loop that no compiler unrolls: `any` is not known to it, and may have any value. A number of the uniform block would
// not do: llvmpipe puts its value into the text at a dispatch, and compiles that. Stands in for trips_known where a driver's
// compiler takes far longer for long texts. For few turns alone: llvmpipe ends all loops of a lane, in silence, after 65,535
// turns in sum.
fn trips(n: u32, any: u32) -> u32 {
    return n * min(any | 1u, 1u);
}
