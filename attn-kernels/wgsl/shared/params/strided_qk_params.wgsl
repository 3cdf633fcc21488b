// Uniform parameters of strided_qk and strided_qk_coop.
struct StridedQkParams {
    num_heads: u32,
    num_kv_heads: u32,
    first_row: u32,
    rows: u32,
    key_start: u32, // column of grid row 0
    kv_len: u32,
    table: u32,
    part_stride: u32,
    scale: f32,
    causal: u32, // 1: a row sees the columns up to its own
}

@group(0) @binding(0) var<uniform> params: StridedQkParams;
