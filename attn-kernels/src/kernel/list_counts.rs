//! Adds up the blocks that lists name: the blocks that a step attended, without a readback of its lists.

use crate::Variant;
use crate::declare::one;
use crate::rows::ListSpan;

kernel! {
    /// The kernel; [`ListCountsBuffers`] lists its bindings.
    "list_counts"(ListCountsParams, ListCountsBuffers): Selection,
    grid: |params, _| [params.spans, 1, 1],
    listed: |_| one(variant()),
    variants: "one",
    bytes: "`4` per list",
    cases: crate::self_test::lists::list_counts,
}

params! {
    /// Uniform parameters.
    pub struct ListCountsParams {
        /// Number of u32 from one list to the next.
        pub list_stride: u32,
        /// Index of the first count that is written.
        pub first: u32,
        /// Number of spans.
        pub spans: u32,
    }
}

bindings! {
    /// Buffers of `list_counts`.
    pub struct ListCountsBuffers(ListCountsParams) {
        /// Lists of `list_stride` u32: count, blocks.
        read lists: u32,
        /// Spans, `[n]`: first list, number of lists.
        read spans: ListSpan,
        /// Counts, `[n]` from `first` on.
        write counts: u32,
    }
}

/// Returns the variant.
#[must_use]
pub fn variant() -> Variant {
    Variant::new(&KERNEL)
}
