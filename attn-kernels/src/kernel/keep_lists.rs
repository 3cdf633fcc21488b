//! Lists of blocks that decode rows keep between the steps that select.

use crate::Variant;
use crate::declare::one;
use crate::rows::KeptRow;

kernel! {
    /// The kernel; [`KeepListsBuffers`] lists its bindings.
    "keep_lists"(KeepListsParams, KeepListsBuffers): Selection,
    grid: |params, _| super::flat_grid(params.rows * params.sets),
    listed: |_| one(variant()),
    variants: "one",
    bytes: "`4 * (1 + copies)` per entry of a list",
    cases: crate::self_test::lists::keep_lists,
}

params! {
    /// Uniform parameters.
    #[derive(PartialEq, Eq)]
    pub struct KeepListsParams {
        /// Number of decode rows.
        pub rows: u32,
        /// Number of different lists of a row.
        pub sets: u32,
        /// Number of equal lists of each set, at most 64.
        pub copies: u32,
        /// Number of u32 from one list to the next.
        pub list_stride: u32,
        /// Number of u32 from one kept list to the next.
        pub kept_stride: u32,
    }
}

bindings! {
    /// Buffers of `keep_lists`.
    pub struct KeepListsBuffers(KeepListsParams) {
        /// Rows, `[rows]`.
        read rows: KeptRow,
        /// Kept lists, `[slots, sets]` of kept_stride u32: count, blocks.
        write kept: u32,
        /// Lists of the step, `[rows, sets, copies]` of list_stride u32: count, blocks.
        write lists: u32,
    }
}

/// Returns the variant.
#[must_use]
pub fn variant() -> Variant {
    Variant::new(&KERNEL)
}
