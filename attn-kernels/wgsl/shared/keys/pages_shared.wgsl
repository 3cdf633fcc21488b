// The page of a KV head behind an entry of a block table: tables name blocks that hold all KV heads. See pages_heads for
// the choice.
fn page_of(entry: u32, kv_head: u32) -> u32 {
    return tables[entry] * params.num_kv_heads + kv_head;
}
