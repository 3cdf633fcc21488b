// Paged KV in fp8 e4m3 in the layout of flash_at: one load is eight elements.
#import chunk_fp8
#import flash_at

fn k_at(block_head: u32, chunk: u32, offset: u32) -> u32 {
    return flash_at(block_head, chunk, offset);
}

fn v_at(block_head: u32, chunk: u32, offset: u32) -> u32 {
    return flash_at(block_head, chunk, offset);
}

fn k_load(at: u32) -> kv_chunk {
    return k_cache[at];
}

fn v_load(at: u32) -> kv_chunk {
    return v_cache[at];
}

@group(0) @binding(2) var<storage, read> k_cache: array<vec2<u32>>;
@group(0) @binding(3) var<storage, read> v_cache: array<vec2<u32>>;
