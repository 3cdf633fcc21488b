//! Copies keys and values out of the paged cache, contiguous and as f32.

use super::attention::{Attention, Context};
use super::{CacheSlot, KvDtype, KvLayout, KvShape};
use crate::declare::{Listed, Sizes, TYPES};
use crate::rows::{KvWord, PhysicalBlock};
use crate::{Variant, slot};

kernel! {
    /// The kernel; [`GatherCacheBuffers`] lists its bindings.
    "gather_cache"(GatherCacheParams, GatherCacheBuffers): Cache,
    grid: |params, variant| {
        let chunks = params.num_kv_heads * (variant.number(slot::HEAD_DIM) / 8);
        [(params.max_keys * chunks).div_ceil(WG), params.spans, 1]
    },
    listed: listed,
    variants: "f16, f32, fp8, int8, each in the v0 layout too, all but int8 in FlashAttention's; all keys or listed blocks",
    bytes: "`12 * Hkv * D` per key",
    cases: crate::self_test::gather_cache::cases,
}

fn listed(sizes: &Sizes) -> Listed {
    let blocks = sizes.each(&TYPES, |shape| variant(shape, Context::Blocks(sizes.select(64))));
    let blocks = blocks.into_iter().map(|(dtype, variant)| (format!("blocks-{dtype}"), variant));
    sizes
        .each_layout(&KvLayout::ALL, |shape| variant(shape, Context::Full))
        .into_iter()
        .chain(blocks)
        .collect()
}

params! {
    /// Uniform parameters.
    pub struct GatherCacheParams {
        /// Number of KV heads.
        pub num_kv_heads: u32,
        /// Number of entries from one list of selected blocks to the next.
        pub list_stride: u32,
        /// Scale of keys in fp8.
        pub k_scale: f32,
        /// Scale of values in fp8.
        pub v_scale: f32,
        /// Maximum number of keys that a span gathers.
        pub max_keys: u32,
        /// Number of spans.
        pub spans: u32,
    }
}

bindings! {
    /// Buffers of `gather_cache`.
    pub struct GatherCacheBuffers(GatherCacheParams) {
        /// Spans, `[n]`: first key in the order of attention, KV length, first row of the output, first entry of the
        /// block table. Without lists, the order of attention is that of positions.
        read spans: [u32; 4],
        /// Cache of keys, in the layout of `KvShape`.
        read k_cache: KvWord,
        /// Cache of values, in the layout of `KvShape`.
        read v_cache: KvWord,
        /// Block tables of all rows.
        read tables: PhysicalBlock,
        /// Keys, `[rows, num_kv_heads, head_dim]`; zero after the end of a head's shorter list.
        write k_out: f32,
        /// Values, `[rows, num_kv_heads, head_dim]`; zero after the end of a head's shorter list.
        write v_out: f32,
        /// Lists of blocks, `[n, num_kv_heads]`: count, then ascending blocks.
        read selected: u32 = None,
    }
}

/// Module that reads keys and values in FlashAttention's layout.
const FLASH: CacheSlot = CacheSlot::new(
    "kv",
    &[
        ((KvLayout::Flash, KvDtype::F16), "kv_flash_f16"),
        ((KvLayout::Flash, KvDtype::F32), "kv_flash_f32"),
        ((KvLayout::Flash, KvDtype::Fp8), "kv_flash_fp8"),
    ],
);

const WG: u32 = 64;

/// Returns the variant for one cache shape; it gathers all keys by position, or listed keys.
///
/// # Panics
/// For lists of single tokens.
#[must_use]
pub fn variant(shape: &KvShape, context: Context) -> Variant {
    shape.check();
    assert!(context != Context::Tokens, "gather_cache takes listed blocks, not listed tokens");
    let variant = Variant::new(&KERNEL)
        .over_cache(if shape.layout == KvLayout::Flash { FLASH } else { super::KV }, shape)
        .set(slot::HEAD_DIM, shape.head_dim)
        .set(slot::BLOCK_SIZE, shape.block_size)
        .constant("WG", WG);
    let variant = Attention { context, ..Attention::default() }.order(variant, shape, 1);
    variant.with_if("selected", context != Context::Full)
}
