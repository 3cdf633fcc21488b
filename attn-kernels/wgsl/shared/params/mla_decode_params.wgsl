// Uniform parameters of mla_decode and mla_decode_coop.
struct MlaDecodeParams {
    num_heads: u32,
    q_stride: u32, // a multiple of 4
    max_partitions: u32,
    partition_size: u32, // in keys, a multiple of PARTITION
    reduced: u32, // 1: paged_reduce follows
    scale: f32,
    list_stride: u32,
    first_row: u32,
    compressed_stride: u32,
    first_key: u32,
    num_keys: u32,
    rows: u32,
}

@group(0) @binding(0) var<uniform> params: MlaDecodeParams;
