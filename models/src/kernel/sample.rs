//! Draws tokens from logits.

use attn_kernels::{Kernel, Params, Variant, bindings, params};
use bytemuck::{Pod, Zeroable};

/// The kernel; [`SampleBuffers`] lists its bindings.
pub static KERNEL: Kernel = Kernel {
    name: "sample",
    role: attn_kernels::Role::Sampling,
    wgsl: include_str!("../../wgsl/sample.wgsl"),
    modules: &[super::MODULES, attn_kernels::MODULES],
    params: SampleParams::LAYOUT,
    bindings: SampleBuffers::BINDINGS,
};

params! {
    /// Uniform parameters.
    pub struct SampleParams {
        /// Logits a row.
        pub vocab: u32,
        /// Parts of a row.
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
        /// Sampling of each row, `[rows]`.
        read specs: Spec,
        /// Largest logits, as `scan_logits` left them.
        read maxima: f32,
        /// Candidates and masses, as `scan_logits` left them.
        read values: [f32; 4],
        /// Ids of the same, as `scan_logits` left them.
        read ids: [u32; 2],
        /// Drawn tokens, or [`NOT_FINITE`], `[rows]`.
        write out: u32,
    }
}

/// Result in place of a token for a row with a logit that is not finite.
pub const NOT_FINITE: u32 = u32::MAX;

/// Parameters of the draw of one row.
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct Spec {
    /// 0 is greedy.
    pub temperature: f32,
    /// Smallest set of tokens whose mass reaches this; 1 keeps all.
    pub top_p: f32,
    /// Keeps tokens of at least this share of the likeliest one's probability; 0 keeps all.
    pub min_p: f32,
    /// Keeps this many of the likeliest tokens; 0 keeps all.
    pub top_k: u32,
    /// Seed, low half.
    pub seed_low: u32,
    /// Seed, high half.
    pub seed_high: u32,
    /// Position of the token drawn: with the seed it fixes the noise.
    pub position: u32,
    /// 1 where minus infinity stands for a forbidden token; else a logit of minus infinity is not finite.
    pub masked: u32,
}

impl Spec {
    /// Parameters that draw the likeliest token.
    pub const GREEDY: Self = Self {
        temperature: 0.0,
        top_p: 1.0,
        min_p: 0.0,
        top_k: 0,
        seed_low: 0,
        seed_high: 0,
        position: 0,
        masked: 0,
    };
}

/// The kernel, behind a scan with blocks of `each` tokens.
#[must_use]
pub fn variant(each: u32) -> Variant {
    super::scan_logits::sized(&KERNEL, each)
}

/// Workgroups for `rows` rows.
#[must_use]
pub fn grid(rows: u32) -> [u32; 3] {
    [rows, 1, 1]
}
