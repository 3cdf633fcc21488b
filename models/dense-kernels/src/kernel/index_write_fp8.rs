//! Writes keys of an indexer into their paged cache, in fp8 as published.

use attn_kernels::declare::one;
use attn_kernels::kernel::flat_grid;
use attn_kernels::rows::KvWord;
use attn_kernels::{Variant, bindings, kernel, params, slot};

kernel! {
    /// The kernel; [`IndexWriteFp8Buffers`] lists its bindings.
    "index_write_fp8"(IndexWriteFp8Params, IndexWriteFp8Buffers): Cache,
    grid: |params, _| flat_grid(params.rows),
    modules: [super::MODULES],
    listed: |_| one(variant(128, 64)),
    variants: "one, by the head size",
    bytes: "`5 * D + 8` per row",
    cases: crate::self_test::index::write_fp8,
}

params! {
    /// Uniform parameters.
    pub struct IndexWriteFp8Params {
        /// Number of rows.
        pub rows: u32,
        /// Number of f32 from one row of x to the next.
        pub row_stride: u32,
        /// First element of a row's key.
        pub first: u32,
        /// Factor of the rotation, `1 / sqrt(head_dim)`.
        pub root: f32,
    }
}

bindings! {
    /// Buffers of `index_write_fp8`.
    pub struct IndexWriteFp8Buffers(IndexWriteFp8Params) {
        /// Rows of `row_stride` f32, the vector from `first` on.
        read x: f32,
        /// Slots of rows in the cache, `[rows]`; -1 skips a row.
        read slots: i32,
        /// Cache of keys: each page has codes, `[page, head_dim]`, then f32 scales, `[page]`.
        write keys: KvWord,
    }
}

/// The factor of the rotation of vectors of `head_dim` elements.
#[must_use]
pub fn root(head_dim: u32) -> f32 {
    1.0 / (head_dim as f32).sqrt()
}

/// Returns the variant for pages of `page` keys.
///
/// # Panics
/// When `head_dim` is not a power of two from 8 on.
#[must_use]
pub fn variant(head_dim: u32, page: u32) -> Variant {
    assert!(head_dim.is_power_of_two() && head_dim >= 8, "keys of {head_dim} dimensions cannot be rotated");
    Variant::new(&KERNEL).set(slot::HEAD_DIM, head_dim).set(slot::BLOCK_SIZE, page)
}
