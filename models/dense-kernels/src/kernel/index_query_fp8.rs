//! Rounds queries of an indexer to fp8 as published, in place.

use attn_kernels::declare::one;
use attn_kernels::kernel::flat_grid;
use attn_kernels::{Variant, bindings, kernel, params, slot};

kernel! {
    /// The kernel; [`IndexQueryFp8Buffers`] lists its bindings.
    "index_query_fp8"(IndexQueryFp8Params, IndexQueryFp8Buffers): Selection,
    grid: |params, _| flat_grid(params.vectors),
    modules: [super::MODULES],
    listed: |_| one(variant(128)),
    variants: "one, by the head size",
    bytes: "`8 * D + 8` per head of a row",
    cases: crate::self_test::index::query_fp8,
}

params! {
    /// Uniform parameters.
    pub struct IndexQueryFp8Params {
        /// Number of vectors: heads of all rows.
        pub vectors: u32,
        /// Factor of the rotation, `1 / sqrt(head_dim)`.
        pub root: f32,
    }
}

bindings! {
    /// Buffers of `index_query_fp8`.
    pub struct IndexQueryFp8Buffers(IndexQueryFp8Params) {
        /// Queries, `[vectors, head_dim]`; afterwards the values of their codes, without scales.
        write q: f32,
        /// Weights of heads, `[vectors]`; afterwards times the scales of the queries.
        write gates: f32,
    }
}

/// Returns the variant for one size of heads.
///
/// # Panics
/// When `head_dim` is not a power of two from 8 on.
#[must_use]
pub fn variant(head_dim: u32) -> Variant {
    assert!(head_dim.is_power_of_two() && head_dim >= 8, "heads of {head_dim} dimensions cannot be rotated");
    Variant::new(&KERNEL).set(slot::HEAD_DIM, head_dim)
}
