#import soft_cap
// Scores bounded by params.softcap: c * tanh(score / c). Stands in for logit_plain.
fn logit(score: f32, unit: f32, head: u32, key: u32, position: u32) -> f32 {
    return soft_cap(score, params.softcap * unit);
}
