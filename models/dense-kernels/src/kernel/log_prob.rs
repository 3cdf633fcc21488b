//! Computes negative log likelihoods of given tokens.

use attn_kernels::declare::one;
use attn_kernels::{Variant, bindings, kernel, params};

kernel! {
    /// The kernel; [`LogProbBuffers`] lists its bindings.
    "log_prob"(LogProbParams, LogProbBuffers): Sampling,
    grid: |params, _| [params.rows, 1, 1],
    modules: [super::MODULES],
    listed: |_| one(variant()),
    variants: "one",
    bytes: "`8 * vocab` per row",
    cases: crate::self_test::rows::log_prob,
}

params! {
    /// Uniform parameters.
    pub struct LogProbParams {
        /// Number of rows.
        pub rows: u32,
        /// Number of logits a row.
        pub vocab: u32,
    }
}

bindings! {
    /// Buffers of `log_prob`.
    pub struct LogProbBuffers(LogProbParams) {
        /// Logits, `[rows, vocab]`.
        read logits: f32,
        /// Target tokens, `[rows]`.
        read targets: u32,
        /// Negative log-probabilities of targets, `[rows]`.
        write out: f32,
    }
}

/// Returns the variant.
#[must_use]
pub fn variant() -> Variant {
    Variant::new(&KERNEL).constant("WG", 256)
}
