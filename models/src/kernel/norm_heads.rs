//! RMS or layer norm of parts of rows, in place: query and key heads, latents.

use attn_kernels::kernel::flat_grid;
use attn_kernels::{Access, Kernel, Level, Variant};
use bytemuck::{Pod, Zeroable};

/// Bindings: weight, x.
pub static KERNEL: Kernel = Kernel {
    name: "norm_heads",
    wgsl: include_str!("../../wgsl/norm_heads.wgsl"),
    modules: &[super::MODULES, attn_kernels::MODULES],
    params_bytes: size_of::<NormHeadsParams>(),
    bindings: &[Access::Read, Access::Write],
};

/// Uniform parameters.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct NormHeadsParams {
    /// Rows.
    pub rows: u32,
    /// Runs in each row.
    pub heads: u32,
    /// Elements of a run.
    pub width: u32,
    /// f32 from row to row.
    pub stride: u32,
    /// First element of the first run of a row.
    pub first: u32,
    /// Added to the mean square.
    pub eps: f32,
    /// Zero.
    pub pad0: u32,
    /// Zero.
    pub pad1: u32,
}

/// Lanes a run.
const LANES: u32 = 64;

/// The kernel; `centred` takes the mean off first, which makes a layer norm of an RMS norm.
#[must_use]
pub fn variant(centred: bool, level: Level) -> Variant {
    Variant::new(&KERNEL)
        .size("CENTRED", u32::from(centred))
        .size("WG", LANES)
        .module("reduce", if level == Level::Baseline { "reduce_tree" } else { "reduce_subgroup" })
}

/// Workgroups for `rows` rows of `heads` runs.
#[must_use]
pub fn grid(rows: u32, heads: u32) -> [u32; 3] {
    flat_grid(rows * heads)
}
