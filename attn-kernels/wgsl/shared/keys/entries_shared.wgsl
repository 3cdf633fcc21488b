// An entry of a block table and the page of a KV head that it names, apart: kernels load the entry ahead of its use. Tables name
// blocks that hold all KV heads, as in pages_shared. See entries_heads for the choice.
fn entry_at(entry: u32, kv_head: u32) -> u32 {
    return tables[entry];
}

fn page_named(found: u32, kv_head: u32) -> u32 {
    return found * params.num_kv_heads + kv_head;
}
