//! Puts the parts of attention together into which [`paged_prefill`](super::paged_prefill) cuts the keys of few rows.

use super::LaunchError;
use super::error::Launch;
use super::lse_merge;
use crate::Variant;
use crate::declare::one;

kernel! {
    /// The kernel; [`PrefillReduceBuffers`] lists its bindings.
    "prefill_reduce"(PrefillReduceParams, PrefillReduceBuffers): Attention,
    listed: |sizes| one(variant(sizes.head_dim)),
    variants: "one",
    bytes: "`4 * H * (D + 1) * (parts + 1)` per row",
    cases: crate::self_test::prefill_reduce::cases,
}

params! {
    /// Uniform parameters. A row is one head of one query.
    pub struct PrefillReduceParams {
        /// Rows to reduce.
        pub rows: u32,
        /// The first of them.
        pub first_row: u32,
        /// Parts.
        pub parts: u32,
        /// Rows from one part to the next.
        pub part_rows: u32,
        /// Minus infinity, which WGSL cannot write.
        pub neg_inf: f32,
    }
}

bindings! {
    /// Buffers of `prefill_reduce`.
    pub struct PrefillReduceBuffers(PrefillReduceParams) {
        /// Attention to the keys of each part, `[parts, part_rows, head_dim]`.
        read part_out: f32,
        /// Its log-sum-exps, natural, `[parts, part_rows]`.
        read part_lse: f32,
        /// Attention to all keys, `[*, head_dim]`.
        write out: f32,
        /// Its log-sum-exps, natural, `[*]`.
        write lse: f32,
    }
}

/// The kernel for one head size, a multiple of 4 of at most 1,024.
///
/// # Panics
/// When the head size is another.
#[must_use]
pub fn variant(head_dim: u32) -> Variant {
    lse_merge::of_head_dim(&KERNEL, head_dim)
}

/// Workgroups for `rows` rows of `head_dim` dimensions.
#[must_use]
pub fn grid(head_dim: u32, rows: u32) -> [u32; 3] {
    lse_merge::grid(head_dim, rows)
}

/// Checks the rows of a dispatch against parts of `[output, lse]` of `part_lens` f32, and results of `lens`.
///
/// # Errors
/// A head size that is not a multiple of 4 or over 1,024, or a buffer that is too short.
pub fn check(
    head_dim: u32,
    params: &PrefillReduceParams,
    part_lens: [usize; 2],
    lens: [usize; 2],
) -> Result<(), LaunchError> {
    let launch = Launch(KERNEL.name);
    lse_merge::check_head_dim(launch, head_dim)?;
    launch.not_zero("parts", params.parts)?;
    let end = u64::from(params.first_row) + u64::from(params.rows);
    let part_end = u64::from(params.parts - 1) * u64::from(params.part_rows) + end;
    let names = [["f32 of parts", "f32 of their lse"], ["f32 of the output", "f32 of lse"]];
    for (rows, names, lens) in [(part_end, names[0], part_lens), (end, names[1], lens)] {
        launch.at_most(names[0], rows * u64::from(head_dim), lens[0] as u64)?;
        launch.at_most(names[1], rows, lens[1] as u64)?;
    }
    Ok(())
}
