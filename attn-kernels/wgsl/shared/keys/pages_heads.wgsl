// The page of a KV head behind an entry of a block table: tables are [entries, num_kv_heads] and name the pages
// themselves, as `residency` writes them. Stands in for pages_shared.
fn page_of(entry: u32, kv_head: u32) -> u32 {
    return tables[entry * params.num_kv_heads + kv_head];
}
