//! Dense kernels of a decoder: parameters, bindings, specialisation, grid. Each kernel has a module with the name of its
//! `.wgsl` file and of its CPU reference.

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
pub mod matmul_coop;
pub mod matmul_int8;
pub mod matmul_int8_tile;
pub mod matmul_tile;
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

use attn_kernels::declare::Sizes;
use attn_kernels::source::Modules;
use attn_kernels::{Kernel, NamedVariant};

/// Terms of experts other than their matrices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ExpertTerms {
    /// Whether experts have biases.
    pub biased: bool,
    /// Whether rows have a weight for each of their experts.
    pub weighted: bool,
}

impl ExpertTerms {
    /// Matrices without biases or weights.
    pub const NONE: Self = Self { biased: false, weighted: false };
}

/// The shared shader modules of this crate's kernels, as `build.rs` lists them.
pub const MODULES: Modules = include!(concat!(env!("OUT_DIR"), "/modules.rs"));

/// Lists every kernel, by name.
#[must_use]
pub fn catalog() -> Vec<&'static Kernel> {
    include!(concat!(env!("OUT_DIR"), "/kernels.rs"))
}

/// Lists one variant of every kernel for each choice of modules, by name, at sizes of typical models.
#[must_use]
pub fn variants() -> Vec<NamedVariant> {
    let mut all = NamedVariant::list(&catalog(), &Sizes::of_heads(128));
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all
}
