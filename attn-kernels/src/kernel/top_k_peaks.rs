//! The largest keys of groups of scores, by which `top_k_long` chooses groups.
//!
//! A row of `top_k` is one workgroup's work, score by score. In rows beyond [`LONG`] scores all workgroups together find the
//! groups' peaks first, and `top_k_long` then reads little more than the groups that count.

use crate::Variant;
use crate::declare::one;
use crate::rows::TopRow;

kernel! {
    /// The kernel; [`TopKPeaksBuffers`] lists its bindings.
    "top_k_peaks"(TopKPeaksParams, TopKPeaksBuffers): Selection,
    grid: |params, _| {
        let [y, z, _] = super::flat_grid(params.rows);
        [params.max_groups.div_ceil(GROUPS), y, z]
    },
    listed: |_| one(variant()),
    variants: "one",
    bytes: "`4.25 * scores` per row",
    cases: crate::self_test::top_k::peak_cases,
}

params! {
    /// Uniform parameters.
    pub struct TopKPeaksParams {
        /// Number of rows.
        pub rows: u32,
        /// Number of groups of the longest row: see [`max_groups`].
        pub max_groups: u32,
    }
}

bindings! {
    /// Buffers of `top_k_peaks`.
    pub struct TopKPeaksBuffers(TopKPeaksParams) {
        /// Scores in whole vectors of four. Groups begin at multiples of 16 scores, and a row may begin and end in
        /// the middle of a group.
        read scores: f32,
        /// Rows, `[n]`.
        read rows: TopRow,
        /// Sort keys of the peaks, `[n, max_groups]`, of rows that have more scores than are selected.
        index peaks: u32,
    }
}

/// Minimum number of scores of a row that several workgroups share.
pub const LONG: u32 = 16_384;

/// Number of scores of a group.
pub const GROUP: u32 = 16;

/// Number of groups of a workgroup.
const GROUPS: u32 = 128;

/// Maximum number of groups of a row of `max_scores` scores, wherever it begins, rounded up to a multiple of four.
#[must_use]
pub fn max_groups(max_scores: u32) -> u32 {
    (max_scores.div_ceil(GROUP) + 1).next_multiple_of(4)
}

/// Returns the variant.
#[must_use]
pub fn variant() -> Variant {
    Variant::new(&KERNEL)
}
