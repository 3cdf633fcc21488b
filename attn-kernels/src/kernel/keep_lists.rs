//! Lists of blocks that decode rows keep from one step to another, between the steps that select.

use super::LaunchError;
use super::error::Launch;
use crate::Variant;
use crate::declare::one;
use crate::rows::KeptRow;

kernel! {
    /// The kernel; [`KeepListsBuffers`] lists its bindings.
    "keep_lists"(KeepListsParams, KeepListsBuffers): Selection,
    listed: |_| one(variant()),
    variants: "one",
    bytes: "`4 * (1 + copies)` per entry of a list",
    cases: crate::self_test::lists::keep_lists,
}

/// Maximum number of equal lists of a set.
pub const MAX_COPIES: u32 = 64;

params! {
    /// Uniform parameters.
    #[derive(PartialEq, Eq)]
    pub struct KeepListsParams {
        /// Decode rows.
        pub rows: u32,
        /// Different lists of a row.
        pub sets: u32,
        /// Equal lists of each set, at most [`MAX_COPIES`].
        pub copies: u32,
        /// u32 from one list to the next.
        pub list_stride: u32,
        /// u32 from one kept list to the next.
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

/// The kernel.
#[must_use]
pub fn variant() -> Variant {
    Variant::new(&KERNEL)
}

/// Workgroups for `rows` rows of `sets` lists.
#[must_use]
pub fn grid(rows: u32, sets: u32) -> [u32; 3] {
    super::flat_grid(rows * sets)
}

/// Checks a launch for `rows` against `kept_len` u32 of kept lists and `lists_len` u32 of lists.
///
/// # Errors
/// Lists without room for a count, more copies than [`MAX_COPIES`], a row with fewer blocks than it had, a slot outside of the
/// kept lists, or lists outside of their buffer.
pub fn check(
    params: &KeepListsParams,
    rows: &[KeptRow],
    [kept_len, lists_len]: [usize; 2],
) -> Result<(), LaunchError> {
    let launch = Launch(KERNEL.name);
    let sets = [("u32 of a list", params.list_stride), ("u32 of a kept list", params.kept_stride)];
    sets.into_iter().try_for_each(|(what, stride)| launch.not_zero(what, stride))?;
    launch.at_most("copies", params.copies.into(), MAX_COPIES.into())?;
    launch.at_most("rows", params.rows.into(), rows.len() as u64)?;
    let lists = u64::from(params.rows) * u64::from(params.sets) * u64::from(params.copies);
    launch.at_most("u32 of lists", lists * u64::from(params.list_stride), lists_len as u64)?;
    for (entry, row) in rows.iter().enumerate().filter(|(_, row)| row.slot != KeptRow::NONE) {
        let end = (u64::from(row.slot) + 1) * u64::from(params.sets) * u64::from(params.kept_stride);
        launch.entry("u32 of kept lists", entry, end, kept_len as u64)?;
        launch.entry("blocks then", entry, row.then.into(), row.blocks.into())?;
    }
    Ok(())
}
