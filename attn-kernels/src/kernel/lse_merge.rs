//! Merges attention over two disjoint sets of keys.

use super::LaunchError;
use super::error::Launch;
use crate::declare::one;
use crate::{Kernel, Variant, slot};

kernel! {
    /// The kernel; [`LseMergeBuffers`] lists its bindings.
    "lse_merge"(LseMergeParams, LseMergeBuffers): Attention,
    listed: |sizes| one(variant(sizes.head_dim)),
    variants: "one",
    bytes: "`n * H * (12 * D + 12)`",
    cases: crate::self_test::lse_merge::cases,
}

params! {
    /// Uniform parameters.
    pub struct LseMergeParams {
        /// Rows: query rows times heads.
        pub rows: u32,
        /// Minus infinity, which WGSL cannot write.
        pub neg_inf: f32,
        /// The first of them.
        pub first_row: u32,
    }
}

impl LseMergeParams {
    /// Parameters for the first `rows` rows.
    #[must_use]
    pub const fn new(rows: u32) -> Self {
        Self { rows, neg_inf: f32::NEG_INFINITY, first_row: 0 }
    }
}

bindings! {
    /// Buffers of `lse_merge`.
    pub struct LseMergeBuffers(LseMergeParams) {
        /// Attention to the second set, `[rows, head_dim]`; a row is one head of one query.
        read b_out: f32,
        /// Its log-sum-exps, natural, `[rows]`.
        read b_lse: f32,
        /// Attention to the first set, `[rows, head_dim]`; then to both.
        write a_out: f32,
        /// Its log-sum-exps, natural, `[rows]`; then those of both.
        write a_lse: f32,
    }
}

/// Lanes of a workgroup, each of which merges four dimensions of a row.
const WG: u32 = 256;

/// The kernel for one head size, a multiple of 4 of at most 1,024.
///
/// # Panics
/// When the head size is another.
#[must_use]
pub fn variant(head_dim: u32) -> Variant {
    of_head_dim(&KERNEL, head_dim)
}

/// A kernel whose workgroups go over rows as this one's do, for one head size.
pub(super) fn of_head_dim(kernel: &'static Kernel, head_dim: u32) -> Variant {
    assert!(
        head_dim.is_multiple_of(4) && (4..=4 * WG).contains(&head_dim),
        "head size {head_dim} is not a multiple of 4 from 4 to {}",
        4 * WG
    );
    Variant::new(kernel).set(slot::HEAD_DIM, head_dim)
}

/// Checks the head size of such a kernel.
pub(super) fn check_head_dim(launch: Launch, head_dim: u32) -> Result<(), LaunchError> {
    launch.not_zero("head size", head_dim)?;
    launch.multiple("head size", head_dim, 4)?;
    launch.at_most("head size", u64::from(head_dim), u64::from(4 * WG))
}

/// Workgroups for `rows` rows of `head_dim` dimensions.
#[must_use]
pub fn grid(head_dim: u32, rows: u32) -> [u32; 3] {
    super::flat_grid(rows.div_ceil(WG * 4 / head_dim))
}

/// Checks the rows of a dispatch against outputs of `out_lens` and log-sum-exps of `lse_lens` f32, of both sets.
///
/// # Errors
/// A head size that is not a multiple of 4 or over 1,024, or a buffer that is too short.
pub fn check(
    head_dim: u32,
    params: &LseMergeParams,
    out_lens: [usize; 2],
    lse_lens: [usize; 2],
) -> Result<(), LaunchError> {
    let launch = Launch(KERNEL.name);
    check_head_dim(launch, head_dim)?;
    let rows = u64::from(params.first_row) + u64::from(params.rows);
    let [out_len, lse_len] = [out_lens, lse_lens].map(|lens| lens.into_iter().fold(usize::MAX, usize::min));
    launch.at_most("f32 of an output", rows * u64::from(head_dim), out_len as u64)?;
    launch.at_most("f32 of lse", rows, lse_len as u64)
}
