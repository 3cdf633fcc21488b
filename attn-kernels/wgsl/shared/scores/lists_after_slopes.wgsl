// Lists of selected blocks behind the slopes of ALiBi, one for each head: together they are one binding.
fn lists_at() -> u32 {
    return params.num_heads;
}
