//! Writes keys and values of a step into the paged cache.

use super::{CacheSlot, KvDtype, KvLayout, KvShape};
use crate::declare::{Listed, Sizes};
use crate::rows::KvWord;
use crate::{Variant, slot};

kernel! {
    /// The kernel; [`CacheWriteBuffers`] lists its bindings.
    "cache_write"(CacheWriteParams, CacheWriteBuffers): Cache,
    grid: |params, variant| {
        let chunks = params.num_kv_heads * (variant.number(slot::HEAD_DIM) / 8);
        super::flat_grid((params.rows * chunks).div_ceil(WG))
    },
    listed: listed,
    variants: "f16, f32, fp8, int8, each in the v0 layout too, all but int8 in FlashAttention's",
    bytes: "`n * Hkv * D * (8 + 4)`",
    cases: crate::self_test::cache_write::cases,
}

fn listed(sizes: &Sizes) -> Listed {
    sizes.each_layout(&KvLayout::ALL, variant)
}

params! {
    /// Uniform parameters.
    pub struct CacheWriteParams {
        /// Number of rows to write.
        pub rows: u32,
        /// Number of KV heads.
        pub num_kv_heads: u32,
        /// Number of f32 from one row of the source to the next.
        pub row_stride: u32,
        /// Offset of the keys in a row.
        pub k_start: u32,
        /// Offset of the values in a row.
        pub v_start: u32,
        /// Scale of keys in fp8.
        pub k_scale: f32,
        /// Scale of values in fp8.
        pub v_scale: f32,
    }
}

bindings! {
    /// Buffers of `cache_write`.
    pub struct CacheWriteBuffers(CacheWriteParams) {
        /// Rows of `row_stride` f32; keys of a row at `k_start`, values at `v_start`, `[num_kv_heads, head_dim]` each.
        read kv: f32,
        /// Slots of rows in the cache, `[rows]`; -1 skips a row.
        read slots: i32,
        /// Cache of keys, in the layout of `KvShape`.
        write k_cache: KvWord,
        /// Cache of values, in the layout of `KvShape`.
        write v_cache: KvWord,
    }
}

const WG: u32 = 64;

/// Module that writes keys and values.
pub const WRITE: CacheSlot = CacheSlot::new(
    "kv",
    &[
        ((KvLayout::Native, KvDtype::F16), "kv_write_f16"),
        ((KvLayout::Native, KvDtype::F32), "kv_write_f32"),
        ((KvLayout::Native, KvDtype::Fp8), "kv_write_fp8"),
        ((KvLayout::Native, KvDtype::Int8), "kv_write_int8"),
        ((KvLayout::V0, KvDtype::F16), "kv_write_published_f16"),
        ((KvLayout::V0, KvDtype::F32), "kv_write_published_f32"),
        ((KvLayout::V0, KvDtype::Fp8), "kv_write_published_fp8"),
        ((KvLayout::V0, KvDtype::Int8), "kv_write_published_int8"),
        ((KvLayout::Flash, KvDtype::F16), "kv_write_flash_f16"),
        ((KvLayout::Flash, KvDtype::F32), "kv_write_flash_f32"),
        ((KvLayout::Flash, KvDtype::Fp8), "kv_write_flash_fp8"),
    ],
);

/// Returns the variant for one cache shape.
#[must_use]
pub fn variant(shape: &KvShape) -> Variant {
    shape.check();
    Variant::new(&KERNEL)
        .over_cache(WRITE, shape)
        .set(slot::HEAD_DIM, shape.head_dim)
        .set(slot::BLOCK_SIZE, shape.block_size)
        .constant("WG", WG)
}
