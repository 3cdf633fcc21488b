// Two parts, gate and up: gelu(gate) * up, by the approximation with tanh.
fn finish(at: u32, gate: f32, up: f32) {
    // (1 + tanh(u)) / 2 is 1 / (1 + exp(-2 u)).
    let u = 0.7978845608 * gate * fma(0.044715 * gate, gate, 1.0);
    y[at] = gate / (1.0 + exp(-2.0 * u)) * up;
}
