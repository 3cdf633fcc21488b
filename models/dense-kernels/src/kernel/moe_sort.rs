//! Orders pairs of a row and an expert by expert, and divides them into tiles.

use attn_kernels::declare::one;
use attn_kernels::{Variant, bindings, kernel, params};

kernel! {
    /// The kernel; [`MoeSortBuffers`] lists its bindings.
    "moe_sort"(MoeSortParams, MoeSortBuffers): Dense,
    grid: |_, _| [1, 1, 1],
    modules: [super::MODULES],
    listed: |_| one(variant(128)),
    variants: "one, by the number of experts",
    bytes: "`16` per pair",
    cases: crate::self_test::moe::sort,
}

params! {
    /// Uniform parameters.
    pub struct MoeSortParams {
        /// Number of pairs.
        pub pairs: u32,
        /// Maximum number of pairs of a tile.
        pub tile: u32,
        /// Number of tiles that the matmul runs: see [`max_tiles`].
        pub max_tiles: u32,
    }
}

bindings! {
    /// Buffers of `moe_sort`.
    pub struct MoeSortBuffers(MoeSortParams) {
        /// Expert of each pair, `[pairs]`.
        read experts: u32,
        /// Tiles, `[max_tiles]`: expert, first and end position in `order`, 0.
        index tiles: [u32; 4],
        /// Pairs by expert, `[pairs]`.
        index order: u32,
    }
}

/// Returns the variant for `experts` experts.
#[must_use]
pub fn variant(experts: u32) -> Variant {
    Variant::new(&KERNEL).set(super::moe_route::EXPERTS, experts)
}

/// Maximum number of tiles that `pairs` pairs make: each expert with pairs may have one tile that is not full.
#[must_use]
pub fn max_tiles(pairs: u32, experts: u32, tile: u32) -> u32 {
    let begun = pairs.min(experts);
    begun + (pairs - begun) / tile
}
