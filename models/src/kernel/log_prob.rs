//! Negative log likelihoods of given tokens.

use attn_kernels::{Access, Kernel, Variant};
use bytemuck::{Pod, Zeroable};

/// Bindings: logits, targets, out.
pub static KERNEL: Kernel = Kernel {
    name: "log_prob",
    wgsl: include_str!("../../wgsl/log_prob.wgsl"),
    modules: &[super::MODULES],
    params_bytes: size_of::<LogProbParams>(),
    bindings: &[Access::Read, Access::Read, Access::Write],
};

/// Uniform parameters.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct LogProbParams {
    /// Rows.
    pub rows: u32,
    /// Logits a row.
    pub vocab: u32,
    /// Zero.
    pub pad0: u32,
    /// Zero.
    pub pad1: u32,
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
