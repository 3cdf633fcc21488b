// logit_alibi with the slopes before the lists of selected blocks, in their buffer.
fn logit(score: f32, unit: f32, head: u32, key: u32, position: u32) -> f32 {
    return score - bitcast<f32>(selected[head]) * unit * (f32(position) - f32(key));
}
