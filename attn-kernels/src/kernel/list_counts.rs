//! Blocks that lists name, added up: what a step attended, without a readback of its lists.

use super::LaunchError;
use super::error::Launch;
use crate::Variant;
use crate::declare::one;
use crate::rows::ListSpan;

kernel! {
    /// The kernel; [`ListCountsBuffers`] lists its bindings.
    "list_counts"(ListCountsParams, ListCountsBuffers): Selection,
    listed: |_| one(variant()),
    variants: "one",
    bytes: "`4` per list",
    cases: crate::self_test::lists::list_counts,
}

params! {
    /// Uniform parameters.
    pub struct ListCountsParams {
        /// u32 from one list to the next.
        pub list_stride: u32,
        /// The first count written.
        pub first: u32,
    }
}

bindings! {
    /// Buffers of `list_counts`.
    pub struct ListCountsBuffers(ListCountsParams) {
        /// Lists of `list_stride` u32: count, blocks.
        read lists: u32,
        /// Spans, `[n]`: first list, lists.
        read spans: ListSpan,
        /// Counts, `[n]` from `first` on.
        write counts: u32,
    }
}

/// The kernel.
#[must_use]
pub fn variant() -> Variant {
    Variant::new(&KERNEL)
}

/// Workgroups for `spans` runs of lists.
#[must_use]
pub const fn grid(spans: u32) -> [u32; 3] {
    [spans, 1, 1]
}

/// Checks `spans`, `[first list, lists]`, against `lists_len` u32 of lists and `counts_len` counts.
///
/// # Errors
/// More spans than a dispatch has, a span outside the lists, or counts that do not hold them.
pub fn check(
    params: &ListCountsParams,
    spans: &[[u32; 2]],
    [lists_len, counts_len]: [usize; 2],
) -> Result<(), LaunchError> {
    let launch = Launch(KERNEL.name);
    launch.at_most("spans", spans.len() as u64, 65_535)?;
    launch.at_most("counts", u64::from(params.first) + spans.len() as u64, counts_len as u64)?;
    for (entry, span) in spans.iter().enumerate() {
        let lists = u64::from(span[0]) + u64::from(span[1]);
        launch.entry("u32 of lists", entry, lists * u64::from(params.list_stride), lists_len as u64)?;
    }
    Ok(())
}
