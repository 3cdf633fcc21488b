@group(0) @binding(3) var<storage, read_write> k_cache: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> v_cache: array<vec4<f32>>;

fn k_store(block_head: u32, chunk: u32, offset: u32, source: u32) {
    let at = (block_head * (HEAD_DIM / 4u) + chunk * 2u) * BLOCK_SIZE + offset;
    k_cache[at] = four(source);
    k_cache[at + BLOCK_SIZE] = four(source + 4u);
}

fn v_store(block_head: u32, chunk: u32, offset: u32, source: u32) {
    let at = (block_head * BLOCK_SIZE + offset) * (HEAD_DIM / 4u) + chunk * 2u;
    v_cache[at] = four(source);
    v_cache[at + 1u] = four(source + 4u);
}
