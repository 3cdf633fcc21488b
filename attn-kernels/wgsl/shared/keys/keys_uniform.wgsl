// Elements of one key or value, read at one address for all lanes.
const SPAN: u32 = 1u;

// Whether a lane has nothing to do: no other needs it.
fn is_idle(lane: u32, rows: u32) -> bool {
    return lane >= rows;
}

// Chunk `chunk` of the key whose chunk 0 is at `at`.
fn key_span(at: u32, chunk: u32, lane: u32) -> array<vec4<f32>, 2u * SPAN> {
    let k = k_load(at + chunk * k_at(0u, 1u, 0u));
    return array(kv_low(k) - KV_ZERO, kv_high(k) - KV_ZERO);
}

fn value_span(at: u32, chunk: u32, lane: u32) -> array<vec4<f32>, 2u * SPAN> {
    let v = v_load(at + chunk * v_at(0u, 1u, 0u));
    return array(kv_low(v) - KV_ZERO, kv_high(v) - KV_ZERO);
}
