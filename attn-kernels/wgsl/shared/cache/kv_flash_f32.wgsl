// Paged KV in f32 in the layout of flash_at.
#import chunk_f32
#import flash_at

fn k_at(block_head: u32, chunk: u32, offset: u32) -> u32 {
    return 2u * flash_at(block_head, chunk, offset);
}

fn v_at(block_head: u32, chunk: u32, offset: u32) -> u32 {
    return 2u * flash_at(block_head, chunk, offset);
}

fn k_load(at: u32) -> kv_chunk {
    return kv_chunk(k_cache[at], k_cache[at + 1u]);
}

fn v_load(at: u32) -> kv_chunk {
    return kv_chunk(v_cache[at], v_cache[at + 1u]);
}

@group(0) @binding(2) var<storage, read> k_cache: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> v_cache: array<vec4<f32>>;
