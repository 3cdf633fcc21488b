//! Rotary position embedding of queries and keys, with keys and values written to the cache.

use attn_kernels::declare::TYPES;
use attn_kernels::kernel::cache_write;
use attn_kernels::kernel::{KvShape, flat_grid};
use attn_kernels::rows::{Angle, KvWord};
use attn_kernels::{Variant, bindings, kernel, params, slot};

use crate::Pairing;

kernel! {
    /// The kernel; [`RopeAppendBuffers`] lists its bindings.
    "rope_append"(RopeAppendParams, RopeAppendBuffers): Cache,
    modules: [super::MODULES],
    listed: |sizes| sizes.each(&TYPES, |shape| variant(shape, Pairing::Halves)),
    variants: "f16, f32, fp8, int8; halves or interleaved",
    bytes: "`D * (8 * H + 12 * Hkv)` per row",
    cases: crate::self_test::rows::rope_append,
}

params! {
    /// Uniform parameters.
    pub struct RopeAppendParams {
        /// Rows.
        pub rows: u32,
        /// Query heads.
        pub num_heads: u32,
        /// KV heads.
        pub num_kv_heads: u32,
        /// Pairs of dimensions to rotate in each head.
        pub pairs: u32,
    }
}

bindings! {
    /// Buffers of `rope_append`.
    pub struct RopeAppendBuffers(RopeAppendParams) {
        /// Queries, keys and values of each row, `[rows, num_heads + 2 * num_kv_heads, head_dim]`.
        read qkv: f32,
        /// Slots of rows in the cache, `[rows]`; -1 skips a row.
        read slots: i32,
        /// Cache of keys, in the layout of `KvShape`.
        write k_cache: KvWord,
        /// Cache of values, in the layout of `KvShape`.
        write v_cache: KvWord,
        /// Angles of each row, `[rows, pairs]`, then a factor on each row's queries, `[rows]`.
        read cs: Angle,
        /// Rotated queries, `[rows, num_heads, head_dim]`.
        write q: f32,
    }
}

const WG: u32 = 64;

/// The kernel for one cache shape and pairing.
#[must_use]
pub fn variant(shape: &KvShape, pairing: Pairing) -> Variant {
    Variant::new(&KERNEL)
        .set(slot::HEAD_DIM, shape.head_dim)
        .set(slot::BLOCK_SIZE, shape.block_size)
        .set(super::rope::INTERLEAVED, pairing == Pairing::Interleaved)
        .set(cache_write::WRITE, shape.stored())
        .constant("WG", WG)
}

/// Workgroups for `rows` rows of `num_heads` query heads.
#[must_use]
pub fn grid(params: &RopeAppendParams, shape: &KvShape) -> [u32; 3] {
    let heads = params.num_heads + 2 * shape.num_kv_heads;
    flat_grid((params.rows * heads * (shape.head_dim / 8)).div_ceil(WG))
}
