//! Split-KV reduction of prefill: merges the parts into which [`paged_prefill`](super::paged_prefill) divides the
//! keys of few rows, by their log-sum-exps.

use super::lse_merge;
use crate::Variant;
use crate::declare::one;

kernel! {
    /// The kernel; [`PrefillReduceBuffers`] lists its bindings.
    "prefill_reduce"(PrefillReduceParams, PrefillReduceBuffers): Attention,
    grid: |params, variant| lse_merge::row_grid(params.rows, variant),
    listed: |sizes| one(variant(sizes.head_dim)),
    variants: "one",
    bytes: "`4 * H * (D + 1) * (parts + 1)` per row",
    cases: crate::self_test::prefill_reduce::cases,
}

params! {
    /// Uniform parameters. A row is one head of one query.
    pub struct PrefillReduceParams {
        /// Number of rows to reduce.
        pub rows: u32,
        /// Index of the first row to reduce.
        pub first_row: u32,
        /// Number of parts.
        pub parts: u32,
        /// Number of rows from one part to the next.
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
        /// Log-sum-exps (natural logarithm) of the parts, `[parts, part_rows]`.
        read part_lse: f32,
        /// Attention to all keys, `[*, head_dim]`.
        write out: f32,
        /// Log-sum-exps (natural logarithm) of the output, `[*]`.
        write lse: f32,
    }
}

/// Returns the variant for one head size, a multiple of 4 of at most 1,024.
///
/// # Panics
/// When the head size is another.
#[must_use]
pub fn variant(head_dim: u32) -> Variant {
    lse_merge::of_head_dim(&KERNEL, head_dim)
}
