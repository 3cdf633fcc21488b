// ALiBi: scores fall with the distance from the key to the row. Stands in for logit_plain.
//   slopes  [num_heads] f32
@group(0) @binding(SLOPES) var<storage, read> slopes: array<f32>;

fn logit(score: f32, unit: f32, head: u32, key: u32, position: u32) -> f32 {
    return score - slopes[head] * unit * (f32(position) - f32(key));
}
