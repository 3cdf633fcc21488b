//! Merges attention over two disjoint sets of keys.

use super::LaunchError;
use super::error::Launch;
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
///
/// # Panics
/// When the head size is not.
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

/// Checks the rows of a dispatch against outputs of `out_lens` and log-sum-exps of `lse_lens` f32, of both sets.
///
/// # Errors
/// A head size that is not a multiple of 4, or a buffer that is too short.
pub fn check(
    head_dim: u32,
    params: &LseMergeParams,
    out_lens: [usize; 2],
    lse_lens: [usize; 2],
) -> Result<(), LaunchError> {
    let launch = Launch(KERNEL.name);
    launch.not_zero("head size", head_dim)?;
    launch.multiple("head size", head_dim, 4)?;
    let rows = u64::from(params.rows);
    let [out_len, lse_len] = [out_lens, lse_lens].map(|lens| lens.into_iter().fold(usize::MAX, usize::min));
    launch.at_most("f32 of an output", rows * u64::from(head_dim), out_len as u64)?;
    launch.at_most("f32 of lse", rows, lse_len as u64)
}
