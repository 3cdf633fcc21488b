// A lane has one key of a tile: KEYS is 1. See lane_key_pair for the choice.

// Chunk `chunk` of a lane's keys, of which the chunks of the first begin at `at`.
fn keys_load(at: u32, chunk: u32) -> array<kv_chunk, KEYS> {
    return array<kv_chunk, KEYS>(k_load(at + chunk * k_at(0u, 1u, 0u)));
}
