// The two keys of a lane lie WG apart, so that neighbours read neighbouring chunks. See keys_paired for the choice.
struct KeyChunks { first: kv_chunk, second: kv_chunk }

// Indices in the step of the keys that a lane owns.
fn keys_of(lane: u32) -> vec2<u32> {
    return vec2(lane, lane + WG);
}

// Keys that are read: of keys from begin to before end, which stand in for the others.
fn keys_read(lane: u32, begin: u32, end: u32) -> vec2<u32> {
    return clamp(keys_of(lane), vec2(begin), vec2(end - 1u));
}

// First of their chunks.
alias KeysAt = vec2<u32>;

fn keys_at(first: u32, second: u32) -> KeysAt {
    return vec2(first, second);
}

fn keys_load(at: KeysAt, chunk: u32) -> KeyChunks {
    let chunks_at = at + chunk * k_at(0u, 1u, 0u);
    return KeyChunks(k_load(chunks_at.x), k_load(chunks_at.y));
}
