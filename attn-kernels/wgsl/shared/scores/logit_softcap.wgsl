// Scores bounded by params.softcap: c * tanh(score / c). Stands in for logit_plain.
fn logit(score: f32, unit: f32, head: u32, key: u32, position: u32) -> f32 {
    let cap = params.softcap * unit;
    // tanh of large numbers is not a number on some drivers, and 1 in f32 beyond 9.01.
    return cap * tanh(clamp(score / cap, -10.0, 10.0));
}
