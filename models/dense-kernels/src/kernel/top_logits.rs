//! Computes the log-probabilities of a token of a row and of the likeliest ones.

use super::scan_logits;
use attn_kernels::declare::one;
use attn_kernels::{Variant, bindings, kernel, params};
use bytemuck::{Pod, Zeroable};

pub use checkpoint::sampling::MAX_TOP;

kernel! {
    /// The kernel; [`TopLogitsBuffers`] lists its bindings.
    "top_logits"(TopLogitsParams, TopLogitsBuffers): Sampling,
    grid: |params, _| [params.requests, 1, 1],
    modules: [super::MODULES],
    listed: |_| one(variant(scan_logits::TOKENS_PER_LANE)),
    variants: "as `sample`",
    bytes: "`4 * vocab` per row, and up to 7 looks at the maxima",
    cases: crate::self_test::sample::top,
}

params! {
    /// Uniform parameters.
    pub struct TopLogitsParams {
        /// Number of logits a row.
        pub vocab: u32,
        /// Number of parts of a row.
        pub parts: u32,
        /// Number of entries of the outputs from one request to the next: one more than the maximum number of tokens
        /// per request.
        pub stride: u32,
        /// Index of the first request of the dispatch.
        pub first: u32,
        /// Number of requests of the dispatch.
        pub requests: u32,
    }
}

bindings! {
    /// Buffers of `top_logits`.
    pub struct TopLogitsBuffers(TopLogitsParams) {
        /// Logits, `[rows, vocab]`.
        read logits: f32,
        /// Rows whose log-probabilities are requested.
        read requests: TopRequest,
        /// Target of each row.
        read targets: u32,
        /// Largest logits, as `scan_logits` wrote them.
        read maxima: f32,
        /// Largest logits and masses, as `scan_logits` wrote them.
        read values: [f32; 4],
        /// The target, then the likeliest tokens, `[requests, stride]`.
        index ids: u32,
        /// Log-probabilities of the tokens, `[requests, stride]`.
        write log_probs: f32,
    }
}

/// Request for the log-probabilities of one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct TopRequest {
    /// Index of the row of logits, and of its entry among the targets.
    pub row: u32,
    /// Number of the likeliest tokens, at most the vocabulary.
    pub tokens: u32,
}

/// Returns the variant that reads the results of `scan_logits` with blocks of `each` tokens.
#[must_use]
pub fn variant(each: u32) -> Variant {
    super::scan_logits::sized(&KERNEL, each)
}
