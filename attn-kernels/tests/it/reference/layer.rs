//! Shapes of paged caches that the tests go through; the caches themselves are those of the self-test.

pub(crate) use attn_kernels::self_test::layer::{ATTENTION, Layer, cache_words, queries, values};

use attn_kernels::declare::Sizes;
use attn_kernels::kernel::paged_prefill::Tile;
use attn_kernels::kernel::{KvDtype, KvLayout, KvShape};
use attn_kernels::{NamedVariant, catalog};
use proptest::prelude::*;

/// Head sizes, KV heads, query heads a KV head, block sizes: each of interest at least once, not all pairs, as every
/// shape is another pipeline. Large heads come with groups that a lane of `paged_prefill` takes one by one: software
/// drivers need a minute to compile four heads of 256.
pub(crate) const SHAPES: [(u32, u32, u32, u32); 7] = [
    (256, 1, 1, 4),
    (128, 1, 7, 8),
    (64, 2, 2, 16),
    (40, 1, 3, 32),
    (24, 2, 4, 64),
    (32, 1, 8, 128),
    (16, 1, 16, 256),
];

/// A shape and its query heads.
pub(crate) fn shape_of(index: usize, dtype: KvDtype) -> (KvShape, u32) {
    let (head_dim, num_kv_heads, group, block_size) = SHAPES[index];
    (KvShape { num_kv_heads, head_dim, block_size, dtype, layout: KvLayout::Native }, num_kv_heads * group)
}

/// Every variant, of sizes that a software driver takes least time for: it compiles heads of 128 elements for minutes, and runs
/// the 32 query heads of a real model as long.
pub(crate) fn small_variants() -> Vec<NamedVariant> {
    let sizes = Sizes { head_dim: 16, num_heads: 4, num_kv_heads: 2, block_size: 16 };
    NamedVariant::list(&catalog(), &sizes)
}

/// Any shape that kernels of attention take, caches of codes among them.
pub(crate) fn coded_shapes() -> impl Strategy<Value = (KvShape, u32)> {
    let dtype = prop::sample::select(vec![None, Some(KvDtype::Fp8), Some(KvDtype::Int8)]);
    (shapes(), dtype).prop_map(|((shape, num_heads), dtype)| {
        (KvShape { dtype: dtype.unwrap_or(shape.dtype), ..shape }, num_heads)
    })
}

/// Any shape that kernels of f16 and f32 take.
pub(crate) fn shapes() -> impl Strategy<Value = (KvShape, u32)> {
    let head_dim =
        prop_oneof![Just(16), Just(32), Just(64), Just(96), Just(128), (2u32..=32).prop_map(|n| 8 * n)];
    let group = prop::sample::select(vec![1, 2, 3, 4, 7, 8, 16]);
    let dtype = prop::sample::select(vec![KvDtype::F16, KvDtype::F32]);
    (head_dim, 1u32..=3, group, 2u32..=8, dtype).prop_map(|(head_dim, num_kv_heads, group, log, dtype)| {
        (
            KvShape { num_kv_heads, head_dim, block_size: 1 << log, dtype, layout: KvLayout::Native },
            num_kv_heads * group,
        )
    })
}

/// The rows of `tiles` in tiles of at most `rows`.
pub(super) fn cut(tiles: &[Tile], rows: u32) -> Vec<Tile> {
    let of = |tile: &Tile| {
        let tile = *tile;
        (0..tile.rows).step_by(rows as usize).map(move |i| {
            let end = tile.rows.min(i + rows);
            Tile::new(tile.row + i..tile.row + end, tile.position + i, tile.table).listed(tile.list)
        })
    };
    tiles.iter().flat_map(of).collect()
}
