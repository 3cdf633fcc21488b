//! Attention sinks on the output of a kernel that returns log-sum-exp.

use super::LaunchError;
use super::error::Launch;
use crate::{Access, Kernel, Variant};
use bytemuck::{Pod, Zeroable};

/// Bindings: lse, sinks, out.
pub static KERNEL: Kernel = Kernel {
    name: "apply_sinks",
    wgsl: include_str!("../../wgsl/apply_sinks.wgsl"),
    modules: &[crate::MODULES],
    params_bytes: size_of::<ApplySinksParams>(),
    bindings: &[Access::Read, Access::Read, Access::Write],
};

/// Uniform parameters.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct ApplySinksParams {
    /// First row.
    pub first_row: u32,
    /// Rows.
    pub rows: u32,
    /// Query heads.
    pub num_heads: u32,
    /// Zero.
    pub pad0: u32,
}

const WG: u32 = 64;

/// The kernel for one head size, a multiple of 4.
///
/// # Panics
/// When the head size is not.
#[must_use]
pub fn variant(head_dim: u32) -> Variant {
    assert!(head_dim.is_multiple_of(4), "head size {head_dim} is not a multiple of 4");
    Variant::new(&KERNEL).size("HEAD_DIM", head_dim).constant("WG", WG)
}

/// Workgroups for `rows` rows.
#[must_use]
pub fn grid(num_heads: u32, head_dim: u32, rows: u32) -> [u32; 3] {
    super::flat_grid((rows * num_heads * (head_dim / 4)).div_ceil(WG))
}

/// Checks the rows of a dispatch against buffers of `lse_len`, `sinks_len` and `out_len` f32.
///
/// # Errors
/// A head size that is not a multiple of 4, or a buffer that is too short.
pub fn check(
    head_dim: u32,
    params: &ApplySinksParams,
    [lse_len, sinks_len, out_len]: [usize; 3],
) -> Result<(), LaunchError> {
    let launch = Launch(KERNEL.name);
    launch.not_zero("head size", head_dim)?;
    launch.multiple("head size", head_dim, 4)?;
    launch.at_most("f32 of sinks", params.num_heads.into(), sinks_len as u64)?;
    let heads = (u64::from(params.first_row) + u64::from(params.rows)) * u64::from(params.num_heads);
    launch.at_most("f32 of lse", heads, lse_len as u64)?;
    launch.at_most("f32 of the output", heads * u64::from(head_dim), out_len as u64)
}
