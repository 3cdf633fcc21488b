// activation(gate) * up of an MLP or an expert.
// KIND: 0 silu(gate) * up; 1 the same of gate <= limit, |up| <= limit; 2 as 1, gate * sigmoid(alpha * gate) * (up + 1).
fn gated(gate_in: f32, up_in: f32, alpha: f32, limit: f32) -> f32 {
    var gate = gate_in;
    var up = up_in;
    if (KIND >= 1u) {
        // `min` and `clamp` may turn what is no number into the limit.
        gate = select(gate, limit, gate > limit);
        up = select(select(up, -limit, up < -limit), limit, up > limit);
    }
    let slope = select(1.0, alpha, KIND == 2u);
    let shift = select(0.0, 1.0, KIND == 2u);
    return gate / (1.0 + exp(-slope * gate)) * (up + shift);
}
