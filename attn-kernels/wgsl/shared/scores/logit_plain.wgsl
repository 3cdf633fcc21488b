// Logit for a scaled score of `head`, in natural logarithms times `unit`.
fn logit(score: f32, unit: f32, head: u32, key: u32, position: u32) -> f32 {
    return score;
}
