//! Writes keys of an indexer into their paged cache.

use attn_kernels::declare::{FLOATS, Listed, Sizes};
use attn_kernels::kernel::{KvDtype, KvShape, flat_grid};
use attn_kernels::rows::KvWord;
use attn_kernels::slot::{self, Number};
use attn_kernels::{Variant, bindings, kernel, params};

kernel! {
    /// The kernel; [`IndexWriteBuffers`] lists its bindings.
    "index_write"(IndexWriteParams, IndexWriteBuffers): Cache,
    grid: |params, variant| flat_grid((params.rows * (variant.number(slot::HEAD_DIM) / 2)).div_ceil(WG)),
    modules: [super::MODULES],
    listed: listed,
    variants: "f16, f32",
    bytes: "`6 * D` per row in f16",
    cases: crate::self_test::index::write,
}

fn listed(sizes: &Sizes) -> Listed {
    sizes.each(&FLOATS, |shape| variant(&KvShape { num_kv_heads: 1, block_size: 64, ..*shape }))
}

params! {
    /// Uniform parameters.
    pub struct IndexWriteParams {
        /// Number of rows.
        pub rows: u32,
        /// Number of f32 from one row of x to the next.
        pub row_stride: u32,
        /// First element of a row's key.
        pub first: u32,
    }
}

bindings! {
    /// Buffers of `index_write`.
    pub struct IndexWriteBuffers(IndexWriteParams) {
        /// Rows of `row_stride` f32; a row's key begins at element `first`.
        read x: f32,
        /// Slots of rows in the cache, `[rows]`; -1 skips a row.
        read slots: i32,
        /// Cache of keys of one head.
        write keys: KvWord,
    }
}

const WG: u32 = 64;

/// Number of elements of a chunk of a key.
///
/// Elements that lie side by side.
pub(crate) const CHUNK: Number = Number("CHUNK");

/// Returns the variant for one cache shape with a single KV head.
///
/// # Panics
///
/// Panics for caches of codes.
#[must_use]
pub fn variant(shape: &KvShape) -> Variant {
    let chunk = match shape.dtype {
        KvDtype::F16 => 8,
        KvDtype::F32 => 4,
        codes => panic!("index keys are kept in f16 or f32, not in {codes:?}"),
    };
    Variant::new(&KERNEL)
        .set(slot::HEAD_DIM, shape.head_dim)
        .set(slot::BLOCK_SIZE, shape.block_size)
        .set(CHUNK, chunk)
        .constant("WG", WG)
}
