// The two keys of a lane are neighbours in a block, whose chunks of eight codes one load brings. Stands in for keys_apart.
struct KeyChunks { first: kv_chunk, second: kv_chunk }

// Indices in the step of the keys that a lane owns.
fn keys_of(lane: u32) -> vec2<u32> {
    return vec2(2u * lane, 2u * lane + 1u);
}

// Keys that are read: pairs with keys from begin to before end, which stand in for the others. One of a pair may lie just
// outside, in an unused slot: what is made of it must not count.
fn keys_read(lane: u32, begin: u32, end: u32) -> vec2<u32> {
    return keys_of(clamp(lane, begin / 2u, (end - 1u) / 2u));
}

// First of their chunks, in pairs.
alias KeysAt = u32;

fn keys_at(first: u32, second: u32) -> KeysAt {
    return first / 2u;
}

fn keys_load(at: KeysAt, chunk: u32) -> KeyChunks {
    let both = k_cache[at + chunk * (k_at(0u, 1u, 0u) / 2u)];
    return KeyChunks(both.xy, both.zw);
}
