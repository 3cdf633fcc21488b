//! CPU references: the textbook formula of each kernel of this crate, f64 inside, slices in and slices out. Each kernel has a
//! module with the name of its `.wgsl` file. [`sample`] alone follows the kernel step by step, as its decisions are integers.

pub mod adjust_logits;
pub mod bias;
pub mod embed;
pub mod expert_down;
pub mod expert_gate_up;
pub mod glu;
pub mod hyper_collapse;
pub mod hyper_expand;
pub mod index_query_fp8;
pub mod index_write;
pub mod index_write_fp8;
pub mod log_prob;
pub mod matmul;
pub mod matmul_int8;
pub mod moe_combine;
pub mod moe_route;
pub mod moe_sort;
pub mod norm_heads;
pub mod quantize_rows;
pub mod rms_norm;
pub mod rope;
pub mod rope_append;
pub mod round_rows;
pub mod sample;
pub mod scan_logits;
pub mod segment_sum;
pub mod softcap;
pub mod split_sum;
pub mod state_write;
pub mod top_logits;

use crate::cast::f32_of;
