//! Positions of a top-k as slots, where the two are not fused.

use super::LaunchError;
use super::error::Launch;
use super::top_k::{TRANSFORM, Transform};
use crate::Variant;
use crate::declare::{Listed, Sizes};
use crate::rows::{PhysicalBlock, TopRow};

kernel! {
    /// The kernel; [`TopKTransformBuffers`] lists its bindings.
    "top_k_transform"(TopKTransformParams, TopKTransformBuffers): Selection,
    listed: listed,
    variants: "paged, ragged",
    bytes: "`8 * k` per row",
    cases: crate::self_test::top_k::transform_cases,
}

fn listed(_: &Sizes) -> Listed {
    vec![("paged".into(), variant(Transform::Paged)), ("ragged".into(), variant(Transform::Ragged))]
}

params! {
    /// Uniform parameters.
    pub struct TopKTransformParams {
        /// Rows.
        pub rows: u32,
        /// Positions a row.
        pub out_stride: u32,
        /// Tokens of a page; 1 makes the table one of slots.
        pub page_size: u32,
    }
}

bindings! {
    /// Buffers of `top_k_transform`.
    pub struct TopKTransformBuffers(TopKTransformParams) {
        /// Rows, `[n]`, of which the base of the transform counts.
        read rows: TopRow,
        /// Page table of the paged transform; read by no other.
        read table: PhysicalBlock,
        /// Positions, `[n, out_stride]`.
        write out: u32,
    }
}

/// The kernel for one transform.
#[must_use]
pub fn variant(transform: Transform) -> Variant {
    Variant::new(&KERNEL).set(TRANSFORM, transform)
}

/// Workgroups for `rows` rows of `out_stride` positions.
#[must_use]
pub fn grid(rows: u32, out_stride: u32) -> [u32; 3] {
    super::flat_grid((rows * out_stride).div_ceil(256))
}

/// Checks `rows` of `top_k` and the positions `out` that it left against a table of `table_len` entries.
///
/// # Errors
/// More rows or positions than there are, a page without tokens, or a position outside the table.
pub fn check(
    params: &TopKTransformParams,
    transform: Transform,
    rows: &[[u32; 4]],
    out: &[u32],
    table_len: usize,
) -> Result<(), LaunchError> {
    let launch = Launch(KERNEL.name);
    launch.not_zero("page size", params.page_size)?;
    launch.not_zero("positions a row", params.out_stride)?;
    launch.at_most("rows", params.rows.into(), rows.len() as u64)?;
    let positions = u64::from(params.rows) * u64::from(params.out_stride);
    launch.at_most("positions", positions, out.len() as u64)?;
    let paged = transform == Transform::Paged;
    for (entry, (row, out)) in rows.iter().zip(out.chunks(params.out_stride as usize)).enumerate() {
        let last = out.iter().filter(|position| **position != u32::MAX).max();
        let end = last.map_or(0, |last| u64::from(row[3]) + u64::from(last / params.page_size) + 1);
        launch.entry("end in the table", entry, if paged { end } else { 0 }, table_len as u64)?;
    }
    Ok(())
}
