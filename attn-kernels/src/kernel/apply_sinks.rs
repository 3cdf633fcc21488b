//! Attention sinks on the output of a kernel that returns log-sum-exp.

use super::LaunchError;
use super::error::Launch;
use crate::declare::one;
use crate::{Variant, slot};

kernel! {
    /// The kernel; [`ApplySinksBuffers`] lists its bindings.
    "apply_sinks"(ApplySinksParams, ApplySinksBuffers): Attention,
    listed: |sizes| one(variant(sizes.head_dim)),
    variants: "one",
    bytes: "`8 * n * H * D`",
    cases: crate::self_test::apply_sinks::cases,
}

params! {
    /// Uniform parameters.
    pub struct ApplySinksParams {
        /// First row.
        pub first_row: u32,
        /// Rows.
        pub rows: u32,
        /// Query heads.
        pub num_heads: u32,
    }
}

bindings! {
    /// Buffers of `apply_sinks`.
    pub struct ApplySinksBuffers(ApplySinksParams) {
        /// Log-sum-exps, natural, `[rows, num_heads]`.
        read lse: f32,
        /// Logits of the sinks, `[num_heads]`.
        read sinks: f32,
        /// Attention, `[rows, num_heads, head_dim]`.
        write out: f32,
    }
}

const WG: u32 = 64;

/// The kernel for one head size, a multiple of 4.
///
/// # Panics
/// When the head size is not.
#[must_use]
pub fn variant(head_dim: u32) -> Variant {
    assert!(head_dim.is_multiple_of(4), "head size {head_dim} is not a multiple of 4");
    Variant::new(&KERNEL).set(slot::HEAD_DIM, head_dim).constant("WG", WG)
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
