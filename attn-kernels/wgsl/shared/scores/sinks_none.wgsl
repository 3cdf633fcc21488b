// Logit of the sink of `head`: none. See sinks_heads.
fn sink_of(head: u32) -> f32 {
    return LOWEST;
}
