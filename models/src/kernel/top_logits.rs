//! Log-probabilities of a token of a row and of the likeliest ones.

use attn_kernels::{Access, Kernel, Variant};
use bytemuck::{Pod, Zeroable};

/// Bindings: logits, asks, targets, ids, log-probabilities.
pub static KERNEL: Kernel = Kernel {
    name: "top_logits",
    wgsl: include_str!("../../wgsl/top_logits.wgsl"),
    modules: &[super::MODULES],
    params_bytes: size_of::<TopLogitsParams>(),
    bindings: &[Access::Read, Access::Read, Access::Read, Access::Write, Access::Write],
};

/// Maximum number of the likeliest tokens of one ask: what interfaces in use allow, and a read of the row each.
pub const MAX_TOP: u32 = 20;

/// Uniform parameters.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct TopLogitsParams {
    /// Logits a row.
    pub vocab: u32,
    /// Entries of the outputs from one ask to the next: one more than the most tokens of an ask.
    pub stride: u32,
    /// First ask of the dispatch.
    pub first: u32,
    /// Minus infinity, which WGSL cannot write.
    pub neg_inf: f32,
}

/// One row whose log-probabilities are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct TopAsk {
    /// The row of logits, and its entry among the targets.
    pub row: u32,
    /// Number of the likeliest tokens, at most the vocabulary.
    pub tokens: u32,
}

/// The kernel.
#[must_use]
pub fn variant() -> Variant {
    Variant::new(&KERNEL).constant("WG", 256)
}

/// Workgroups for `asks` asks.
#[must_use]
pub fn grid(asks: u32) -> [u32; 3] {
    [asks, 1, 1]
}
