// Two parts, gate and up: silu(gate) * up.
fn finish(at: u32, gate: f32, up: f32) {
    y[at] = gate / (1.0 + exp(-gate)) * up;
}
