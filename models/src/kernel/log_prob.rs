//! Negative log likelihoods of given tokens.

use attn_kernels::{Kernel, Params, Variant, bindings, params};

/// The kernel; [`LogProbBuffers`] lists its bindings.
pub static KERNEL: Kernel = Kernel {
    name: "log_prob",
    role: attn_kernels::Role::Sampling,
    wgsl: include_str!("../../wgsl/log_prob.wgsl"),
    modules: &[super::MODULES],
    params: LogProbParams::LAYOUT,
    bindings: LogProbBuffers::BINDINGS,
};

params! {
    /// Uniform parameters.
    pub struct LogProbParams {
        /// Rows.
        pub rows: u32,
        /// Logits a row.
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

/// The kernel.
#[must_use]
pub fn variant() -> Variant {
    Variant::new(&KERNEL).constant("WG", 256)
}

/// Workgroups for `rows` rows.
#[must_use]
pub fn grid(rows: u32) -> [u32; 3] {
    [rows, 1, 1]
}
