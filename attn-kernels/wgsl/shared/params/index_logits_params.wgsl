// Uniform parameters of index_logits and index_logits_coop.
struct IndexLogitsParams { num_heads: u32, logit_stride: u32, neg_inf: f32, rows: u32 }

@group(0) @binding(0) var<uniform> params: IndexLogitsParams;
