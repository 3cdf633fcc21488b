// A lane has two keys of a tile, neighbours in a block, whose chunks of eight codes one load brings: KEYS is 2. Stands in for
// lane_key.

// For a key outside of the tile, a chunk outside of the tile is loaded.
fn keys_load(at: u32, chunk: u32) -> array<kv_chunk, KEYS> {
    let both = k_cache[(at + chunk * k_at(0u, 1u, 0u)) / 2u];
    return array<kv_chunk, KEYS>(both.xy, both.zw);
}
