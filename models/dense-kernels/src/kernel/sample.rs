//! Draws tokens from logits.

use super::scan_logits;
use attn_kernels::declare::one;
use attn_kernels::{Variant, bindings, kernel, params};

pub use checkpoint::sampling::Spec;

kernel! {
    /// The kernel; [`SampleBuffers`] lists its bindings.
    "sample"(SampleParams, SampleBuffers): Sampling,
    grid: |params, _| [params.rows, 1, 1],
    modules: [super::MODULES],
    listed: |_| one(variant(scan_logits::TOKENS_PER_LANE)),
    variants: "blocks of 32 tokens, of 256 on software drivers",
    bytes: "with filters, `vocab / 8` per look at the maxima, up to 7 with top-k and about two with top-p, and at each the blocks with large logits",
    cases: crate::self_test::sample::cases,
}

params! {
    /// Uniform parameters.
    pub struct SampleParams {
        /// Number of rows.
        pub rows: u32,
        /// Number of logits a row.
        pub vocab: u32,
        /// Number of parts of a row.
        pub parts: u32,
        /// Minus infinity, which WGSL cannot write.
        pub neg_inf: f32,
    }
}

bindings! {
    /// Buffers of `sample`.
    pub struct SampleBuffers(SampleParams) {
        /// Logits, `[rows, vocab]`.
        read logits: f32,
        /// Sampling parameters of each row, `[rows]`.
        read specs: Spec,
        /// Largest logits, as `scan_logits` wrote them.
        read maxima: f32,
        /// Candidates and masses, as `scan_logits` wrote them.
        read values: [f32; 4],
        /// Ids of the candidates, as `scan_logits` wrote them.
        read ids: [u32; 2],
        /// Drawn tokens, or [`NOT_FINITE`], `[rows]`.
        index out: u32,
    }
}

/// Result in place of a token for a row with a logit that is not finite.
pub const NOT_FINITE: u32 = u32::MAX;

/// Returns the variant, after a scan with blocks of `each` tokens.
#[must_use]
pub fn variant(each: u32) -> Variant {
    super::scan_logits::sized(&KERNEL, each)
}
