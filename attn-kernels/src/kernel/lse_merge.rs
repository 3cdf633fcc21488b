//! Merges attention over two disjoint sets of keys into attention over both, by their log-sum-exps.

use crate::declare::one;
use crate::{Kernel, Variant, slot};

kernel! {
    /// The kernel; [`LseMergeBuffers`] lists its bindings.
    "lse_merge"(LseMergeParams, LseMergeBuffers): Attention,
    grid: |params, variant| row_grid(params.rows, variant),
    listed: |sizes| one(variant(sizes.head_dim)),
    variants: "one",
    bytes: "`n * H * (12 * D + 12)`",
    cases: crate::self_test::lse_merge::cases,
}

params! {
    /// Uniform parameters.
    pub struct LseMergeParams {
        /// Number of rows: query rows times heads.
        pub rows: u32,
        /// Minus infinity, which WGSL cannot write.
        pub neg_inf: f32,
        /// Index of the first row.
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
        /// Attention to the second set of keys, `[rows, head_dim]`; a row is one head of one query.
        read b_out: f32,
        /// Log-sum-exps (natural logarithm) of `b`, `[rows]`.
        read b_lse: f32,
        /// Output, `[rows, head_dim]`: before the dispatch, attention to the first set of keys; after it, to both
        /// sets.
        write a_out: f32,
        /// Log-sum-exps of the output (natural logarithm), `[rows]`: before the dispatch, over the first set of keys;
        /// after it, over both sets.
        write a_lse: f32,
    }
}

/// Number of lanes of a workgroup; each merges four dimensions of a row.
const WG: u32 = 256;

/// Returns the variant for one head size, a multiple of 4 of at most 1,024.
///
/// # Panics
/// When the head size is another.
#[must_use]
pub fn variant(head_dim: u32) -> Variant {
    of_head_dim(&KERNEL, head_dim)
}

/// Returns the variant, for one head size, of a kernel that divides rows among workgroups as `lse_merge` does.
pub(super) fn of_head_dim(kernel: &'static Kernel, head_dim: u32) -> Variant {
    assert!(
        head_dim.is_multiple_of(4) && (4..=4 * WG).contains(&head_dim),
        "head size {head_dim} is not a multiple of 4 from 4 to {}",
        4 * WG
    );
    Variant::new(kernel).set(slot::HEAD_DIM, head_dim)
}

/// Returns the grid for `rows` rows of a kernel that divides rows among workgroups as `lse_merge` does.
pub(super) fn row_grid(rows: u32, variant: &Variant) -> [u32; 3] {
    super::flat_grid(rows.div_ceil(WG * 4 / variant.number(slot::HEAD_DIM)))
}
