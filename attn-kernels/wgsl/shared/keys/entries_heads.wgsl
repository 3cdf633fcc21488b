// An entry of a block table and the page of a KV head that it names. Tables name the pages themselves, as in pages_heads.
// Stands in for entries_shared.
fn entry_at(entry: u32, kv_head: u32) -> u32 {
    return tables[entry * params.num_kv_heads + kv_head];
}

fn page_named(found: u32, kv_head: u32) -> u32 {
    return found;
}
