// Uniform parameters of paged_prefill and paged_prefill_coop.
struct PagedPrefillParams {
    num_heads: u32,
    num_kv_heads: u32,
    q_stride: u32,
    first_key: u32,
    scale: f32,
    neg_inf: f32,
    num_keys: u32,
    list_stride: u32,
    window: u32,
    softcap: f32,
    k_scale: f32, // of fp8
    v_scale: f32,
    part_keys: u32,
    part_rows: u32,
    log_skip: f32, // of skip_rows
    tiles: u32,
    parts: u32,
}

@group(0) @binding(0) var<uniform> params: PagedPrefillParams;
