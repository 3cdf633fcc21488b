//! Converts positions of a top-k to slots, if the two are not fused.

use super::top_k::{TRANSFORM, Transform};
use crate::Variant;
use crate::declare::{Listed, Sizes};
use crate::rows::{PhysicalBlock, TopRow};

kernel! {
    /// The kernel; [`TopKTransformBuffers`] lists its bindings.
    "top_k_transform"(TopKTransformParams, TopKTransformBuffers): Selection,
    grid: |params, _| super::flat_grid((params.rows * params.out_stride).div_ceil(256)),
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
        /// Number of rows.
        pub rows: u32,
        /// Number of positions a row.
        pub out_stride: u32,
        /// Number of tokens of a page; with 1, the entries of the table are slots.
        pub page_size: u32,
    }
}

bindings! {
    /// Buffers of `top_k_transform`.
    pub struct TopKTransformBuffers(TopKTransformParams) {
        /// Rows, `[n]`; the transform uses their base.
        read rows: TopRow,
        /// Page table, which only the paged transform reads.
        read table: PhysicalBlock,
        /// Positions, `[n, out_stride]`.
        write out: u32,
    }
}

/// Returns the variant for one transform.
#[must_use]
pub fn variant(transform: Transform) -> Variant {
    Variant::new(&KERNEL).set(TRANSFORM, transform)
}
