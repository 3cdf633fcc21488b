//! Keys and values of a step into the paged cache.

use super::error::Launch;
use super::{KvDtype, KvLayout, KvShape, LaunchError};
use crate::Variant;
use crate::declare::{Listed, Sizes};
use crate::rows::KvWord;
use crate::slot::{self, OneOf};

kernel! {
    /// The kernel; [`CacheWriteBuffers`] lists its bindings.
    "cache_write"(CacheWriteParams, CacheWriteBuffers): Cache,
    listed: listed,
    variants: "f16, f32, fp8, int8, each in the v0 layout too, all but int8 in FlashAttention's",
    bytes: "`n * Hkv * D * (8 + 4)`",
    cases: crate::self_test::cache_write::cases,
}

fn listed(sizes: &Sizes) -> Listed {
    KvLayout::listed(sizes, &KvLayout::ALL, variant)
}

params! {
    /// Uniform parameters.
    pub struct CacheWriteParams {
        /// Rows to write.
        pub rows: u32,
        /// KV heads.
        pub num_kv_heads: u32,
        /// f32 from one row of the source to the next.
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

/// Writes keys and values.
pub const WRITE: OneOf<(KvLayout, KvDtype)> = OneOf::new(
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

/// The kernel for one cache shape.
#[must_use]
pub fn variant(shape: &KvShape) -> Variant {
    shape.check();
    Variant::new(&KERNEL)
        .set(WRITE, shape.stored())
        .set(slot::HEAD_DIM, shape.head_dim)
        .set(slot::BLOCK_SIZE, shape.block_size)
        .constant("WG", WG)
}

/// Workgroups for `rows` rows.
#[must_use]
pub fn grid(shape: &KvShape, rows: u32) -> [u32; 3] {
    super::flat_grid((rows * shape.num_kv_heads * (shape.head_dim / 8)).div_ceil(WG))
}

/// Checks `slots`, one a row, against a cache of `num_blocks` blocks and a source of `kv_len` f32.
///
/// # Errors
/// A shape that no kernel takes, rows without a slot entry or past the source, or a slot outside the cache.
pub fn check(
    shape: &KvShape,
    params: &CacheWriteParams,
    slots: &[i32],
    num_blocks: u32,
    kv_len: usize,
) -> Result<(), LaunchError> {
    let launch = Launch(KERNEL.name);
    shape.validate(shape.num_kv_heads)?;
    launch.at_most("rows", params.rows.into(), slots.len() as u64)?;
    let width = u64::from(params.num_kv_heads) * u64::from(shape.head_dim);
    let start = u64::from(params.k_start.max(params.v_start));
    for (entry, slot) in slots.iter().enumerate().take(params.rows as usize) {
        let Ok(slot) = u64::try_from(*slot) else { continue };
        let end = entry as u64 * u64::from(params.row_stride) + start + width;
        launch.entry("end in the source", entry, end, kv_len as u64)?;
        let slots = u64::from(num_blocks) * u64::from(shape.block_size);
        launch.entry("slot + 1", entry, slot + 1, slots)?;
    }
    Ok(())
}
