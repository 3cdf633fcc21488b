//! Draws tokens from logits.

use attn_kernels::{Access, Kernel, Variant};
use bytemuck::{Pod, Zeroable};

/// Bindings: logits, specs, out.
pub static KERNEL: Kernel = Kernel {
    name: "sample",
    wgsl: include_str!("../../wgsl/sample.wgsl"),
    modules: &[super::MODULES],
    params_bytes: size_of::<SampleParams>(),
    bindings: &[Access::Read, Access::Read, Access::Write],
};

/// Uniform parameters.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct SampleParams {
    /// Rows.
    pub rows: u32,
    /// Logits a row.
    pub vocab: u32,
    /// Minus infinity, which WGSL cannot write.
    pub neg_inf: f32,
    /// Zero.
    pub pad0: u32,
}

/// How one row is drawn.
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
    /// Zero.
    pub pad0: u32,
}

impl Spec {
    /// The likeliest token.
    pub const GREEDY: Self = Self {
        temperature: 0.0,
        top_p: 1.0,
        min_p: 0.0,
        top_k: 0,
        seed_low: 0,
        seed_high: 0,
        position: 0,
        pad0: 0,
    };
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
