// Turns of a loop: compilers know the number and unroll. See trips_hidden for the choice.
fn trips(n: u32, any: u32) -> u32 {
    return n;
}
