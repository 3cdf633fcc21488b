//! Every variant of the dense kernels against its CPU reference, as data: see [`attn_kernels::self_test`].

mod hyper;
mod index;
mod matmul;
mod moe;
mod rows;
mod sample;
pub mod tensors;

use attn_kernels::Variant;
use attn_kernels::self_test::{Case, Cases, cases_of};

/// Makers of the cases of each kernel, by the kernel's name.
const CASES: &[(&str, Cases)] = &[
    ("adjust_logits", sample::adjust),
    ("bias", rows::bias),
    ("embed", matmul::embed),
    ("glu", moe::gate),
    ("hyper_collapse", hyper::collapse),
    ("hyper_expand", hyper::expand),
    ("index_query_fp8", index::query_fp8),
    ("index_write", index::write),
    ("index_write_fp8", index::write_fp8),
    ("log_prob", rows::log_prob),
    ("matmul", matmul::matmul),
    ("matmul_coop", matmul::matmul_coop),
    ("matmul_int8", matmul::matmul_int8),
    ("matmul_int8_tile", matmul::matmul_int8_tile),
    ("matmul_tile", matmul::matmul_tile),
    ("moe_combine", moe::combine),
    ("moe_route", moe::route),
    ("moe_sort", moe::sort),
    ("norm_heads", rows::norm_heads),
    ("quantize_rows", matmul::quantize_rows),
    ("rms_norm", rows::rms_norm),
    ("rope", rows::rope),
    ("rope_append", rows::rope_append),
    ("round_rows", matmul::round_rows),
    ("sample", sample::cases),
    ("scan_logits", sample::scan),
    ("softcap", rows::softcap),
    ("split_sum", matmul::split_sum),
    ("state_write", rows::state_write),
    ("top_logits", sample::top),
];

/// The cases of a variant of this crate; none where its kernel has none.
#[must_use]
pub fn cases(variant: &Variant) -> Vec<Case> {
    cases_of(CASES, variant)
}
