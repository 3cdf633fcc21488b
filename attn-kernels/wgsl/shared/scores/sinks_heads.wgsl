// Logit of the sink of `head`: a key without value that every row sees, its score given. Minus infinity is no sink.
//   sinks  [num_heads] f32
@group(0) @binding(SINKS) var<storage, read> sinks: array<f32>;

fn sink_of(head: u32) -> f32 {
    return max(sinks[head], LOWEST);
}
