// Elements of one key or value, two chunks at once: eight lanes load a word each and broadcast it in the subgroup (of
// at least eight lanes). Software drivers run one load a lane, whatever the addresses. Goes with kv_f16.
#import spread_f16

// Chunks `chunk` and `chunk + 1` of the key whose chunk 0 is at `at`.
fn key_span(at: u32, chunk: u32, lane: u32) -> array<vec4<f32>, 2u * SPAN> {
    let mine = chunk + lane / 4u % 2u;
    return spread(k_cache[at + mine * k_at(0u, 1u, 0u)][lane % 4u]);
}

fn value_span(at: u32, chunk: u32, lane: u32) -> array<vec4<f32>, 2u * SPAN> {
    let mine = chunk + lane / 4u % 2u;
    return spread(v_cache[at + mine * v_at(0u, 1u, 0u)][lane % 4u]);
}

// Whether a lane has nothing to do: none, as lanes load for each other.
fn is_idle(lane: u32, rows: u32) -> bool {
    return false;
}
