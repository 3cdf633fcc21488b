// Elements of one key or value: eight lanes load one each and broadcast it in the subgroup (of at least eight lanes).
// Software drivers run one load a lane, whatever the addresses. Goes with kv_f32.
#import spread_f32

// Chunk `chunk` of the key whose chunk 0 is at `at`.
fn key_span(at: u32, chunk: u32, lane: u32) -> array<vec4<f32>, 2u * SPAN> {
    let half = lane / 4u % 2u;
    return spread(k_cache[at + chunk * k_at(0u, 1u, 0u) + half * BLOCK_SIZE][lane % 4u]);
}

fn value_span(at: u32, chunk: u32, lane: u32) -> array<vec4<f32>, 2u * SPAN> {
    let half = lane / 4u % 2u;
    return spread(v_cache[at + chunk * v_at(0u, 1u, 0u) + half][lane % 4u]);
}

// Whether a lane has nothing to do: none, as lanes load for each other.
fn is_idle(lane: u32, rows: u32) -> bool {
    return false;
}
