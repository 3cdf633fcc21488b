//! Merges attention over two disjoint sets of keys.

use crate::{Access, Kernel, Variant};
use bytemuck::{Pod, Zeroable};

/// Bindings: b_out, b_lse, a_out, a_lse.
pub static KERNEL: Kernel = Kernel {
    name: "lse_merge",
    wgsl: include_str!("../../wgsl/lse_merge.wgsl"),
    modules: &[crate::MODULES],
    params_bytes: size_of::<LseMergeParams>(),
    bindings: &[Access::Read, Access::Read, Access::Write, Access::Write],
};

/// Uniform parameters.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct LseMergeParams {
    /// Rows: query rows times heads.
    pub rows: u32,
    /// Minus infinity, which WGSL cannot write.
    pub neg_inf: f32,
    /// Zero.
    pub pad0: u32,
    /// Zero.
    pub pad1: u32,
}

/// The kernel for one head size, a multiple of 4.
#[must_use]
pub fn variant(head_dim: u32) -> Variant {
    assert!(head_dim.is_multiple_of(4), "head size {head_dim} is not a multiple of 4");
    Variant::new(&KERNEL).size("HEAD_DIM", head_dim).constant("WG", 64)
}

/// Workgroups for `rows` rows.
#[must_use]
pub fn grid(rows: u32) -> [u32; 3] {
    super::flat_grid(rows)
}
