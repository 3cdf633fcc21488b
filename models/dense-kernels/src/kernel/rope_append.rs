//! Applies rotary position embedding to queries and keys, and writes keys and values to the cache.

use attn_kernels::declare::TYPES;
use attn_kernels::kernel::cache_write;
use attn_kernels::kernel::{KvShape, flat_grid};
use attn_kernels::rows::{Angle, KvWord};
use attn_kernels::slot::Flag;
use attn_kernels::{Variant, bindings, kernel, params, slot};

use crate::Pairing;

kernel! {
    /// The kernel; [`RopeAppendBuffers`] lists its bindings.
    "rope_append"(RopeAppendParams, RopeAppendBuffers): Cache,
    grid: grid,
    modules: [super::MODULES],
    listed: |sizes| {
        let of = |before| sizes.each(&TYPES, |shape| variant(shape, Pairing::Halves, before));
        let (biased, normed) = (Before { biased: true, ..Before::NONE }, Before { normed: true, ..Before::NONE });
        let with = |before, suffix| of(before).into_iter().map(move |(part, variant)| (format!("{part}-{suffix}"), variant));
        of(Before::NONE).into_iter().chain(with(biased, "biased")).chain(with(normed, "normed")).collect()
    },
    variants: "f16, f32, fp8, int8; halves or interleaved; with a bias; with a norm of heads",
    bytes: "`D * (8 * H + 12 * Hkv)` per row",
    cases: crate::self_test::rows::rope_append,
}

params! {
    /// Uniform parameters.
    pub struct RopeAppendParams {
        /// Number of rows.
        pub rows: u32,
        /// Number of query heads.
        pub num_heads: u32,
        /// Number of KV heads.
        pub num_kv_heads: u32,
        /// Number of pairs of dimensions to rotate in each head.
        pub pairs: u32,
        /// Number of leading heads of queries and keys that are normed, in variants with a norm.
        pub normed: u32,
        /// Epsilon that the norm adds to the mean square.
        pub eps: f32,
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
        /// Cosine and sine of each pair of each row, `[rows, pairs]`, then a factor on each row's queries, `[rows]`.
        read cs: Angle,
        /// Rotated queries, `[rows, num_heads, head_dim]`.
        write q: f32,
        /// Bias of queries, keys and values, `[num_heads + 2 * num_kv_heads, head_dim]`, if there is one.
        read bias: f32,
        /// Norm of heads, `[queries or keys, factor or addend, head_dim]`, if there is one.
        read norm: f32,
    }
}

/// Number of lanes of a workgroup. It has whole heads of `head_dim` dimensions, eight dimensions per lane.
fn lanes(head_dim: u32) -> u32 {
    let head = head_dim / 8;
    head * (64 / head).max(1)
}

/// Whether there are norms of heads.
pub(crate) const NORMED: Flag = Flag("NORMED");

/// Operations on queries, keys and values before the rotation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Before {
    /// Whether a bias is added to queries, keys and values.
    pub biased: bool,
    /// Whether each head of queries and keys then passes through an RMS norm.
    pub normed: bool,
}

impl Before {
    /// No operation, because the rows need none or have had it.
    pub const NONE: Self = Self { biased: false, normed: false };
}

/// Returns the variant for one cache shape and pairing.
#[must_use]
pub fn variant(shape: &KvShape, pairing: Pairing, Before { biased, normed }: Before) -> Variant {
    Variant::new(&KERNEL)
        .set(slot::HEAD_DIM, shape.head_dim)
        .set(slot::BLOCK_SIZE, shape.block_size)
        .set(super::rope::INTERLEAVED, pairing == Pairing::Interleaved)
        .set(super::glu::BIASED, biased)
        .set(NORMED, normed)
        .over_cache(cache_write::WRITE, shape)
        .set(slot::WG, lanes(shape.head_dim))
}

fn grid(params: &RopeAppendParams, variant: &Variant) -> [u32; 3] {
    let heads = params.num_heads + 2 * params.num_kv_heads;
    let head_lanes = variant.number(slot::HEAD_DIM) / 8;
    flat_grid((params.rows * heads * head_lanes).div_ceil(variant.number(slot::WG)))
}
