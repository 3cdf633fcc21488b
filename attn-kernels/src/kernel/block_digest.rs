//! Digests of the keys of blocks, updated after writes. Block scores are computed from them.

use super::error::Launch;
use super::{CacheSlot, KvDtype, KvShape, LaunchError};
use crate::Variant;
use crate::declare::{Listed, Sizes, TYPES};
use crate::rows::{BlockTokens, KvWord};
use crate::slot::{self, OneOf};

kernel! {
    /// The kernel; [`BlockDigestBuffers`] lists its bindings.
    "block_digest"(BlockDigestParams, BlockDigestBuffers): Selection,
    grid: |params, variant| of_blocks(params.num_kv_heads, params.touched, variant),
    listed: listed,
    variants: "f16, f32, fp8, int8; min and max, or mean; means of values",
    bytes: "`Hkv * D * (2 * tokens + 2 * vectors)` per page written to",
    cases: crate::self_test::block_digest::cases,
}

fn listed(sizes: &Sizes) -> Listed {
    let of = |part: &str, digest| {
        let all = sizes.each(&TYPES, |shape| variant(shape, digest));
        all.into_iter().map(move |(dtype, variant)| (format!("{part}-{dtype}"), variant)).collect::<Listed>()
    };
    let values = sizes.each(&TYPES, of_values);
    let values = values.into_iter().map(|(dtype, variant)| (format!("values-{dtype}"), variant));
    [of("min_max", Digest::MinMax), of("mean", Digest::Mean), values.collect()].concat()
}

/// Summary of the keys of a block and KV head, in the type that [`dtype`] says. The pool is `[num_blocks,
/// num_kv_heads, vectors, head_dim]`, indexed by physical block like the cache.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Digest {
    /// Minimum, then maximum, of each channel (Quest, arXiv 2406.10774).
    MinMax,
    /// Mean of each channel (GSA and ESA of UCM).
    Mean,
}

impl Digest {
    /// Number of vectors of `head_dim` elements per block and KV head.
    #[must_use]
    pub fn vectors(self) -> usize {
        match self {
            Self::MinMax => 2,
            Self::Mean => 1,
        }
    }

    /// Number of elements of the pool for a cache of `num_blocks` blocks.
    #[must_use]
    pub fn pool_elements(self, shape: &KvShape, num_blocks: usize) -> usize {
        num_blocks * shape.num_kv_heads as usize * self.vectors() * shape.head_dim as usize
    }

    /// Number of u32 of the pool for a cache of `num_blocks` blocks: one f32 or two f16 each.
    #[must_use]
    pub fn pool_len(self, shape: &KvShape, num_blocks: usize) -> usize {
        self.pool_elements(shape, num_blocks) * dtype(shape.dtype).bytes() as usize / size_of::<u32>()
    }
}

/// Element type of the digests of a cache of type `cache`: f32 for f32, else f16.
///
/// Minima and maxima stay bounds: of keys in f16 and fp8 they are exact, of int8, whose codes times a scale f16 may not have,
/// minima are rounded down and maxima up. Beyond the largest f16, 65,504, that is an infinity, which `block_score` takes for the
/// largest f32: the bound holds and tells nothing. Means go to the nearest f16, ties to even, at most the largest.
#[must_use]
pub fn dtype(cache: KvDtype) -> KvDtype {
    match cache {
        KvDtype::F32 => KvDtype::F32,
        KvDtype::F16 | KvDtype::Fp8 | KvDtype::Int8 => KvDtype::F16,
    }
}

/// Module that reads digests of a [`dtype`].
pub(crate) const READ: OneOf<KvDtype> =
    OneOf::new("digests", &[(KvDtype::F16, "digests_f16"), (KvDtype::F32, "digests_f32")]);
/// Module that writes digests of a [`dtype`].
const WRITE: OneOf<KvDtype> =
    OneOf::new("digests", &[(KvDtype::F16, "digests_write_f16"), (KvDtype::F32, "digests_write_f32")]);
/// Kind of digest that a variant computes.
pub(crate) const DIGEST: OneOf<Digest> =
    OneOf::new("digest", &[(Digest::MinMax, "digest_min_max"), (Digest::Mean, "digest_mean")]);
/// Rounding to f16.
const HALVES: OneOf<Rounding> = OneOf::new(
    "halves",
    &[
        (Rounding::None, "halves_exact"),
        (Rounding::Nearest, "halves_nearest"),
        (Rounding::Outward, "halves_outward"),
    ],
);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Rounding {
    /// Values are stored as they are: all are exact in f16.
    None,
    /// Values are rounded to the nearest, ties to even.
    Nearest,
    /// Minima are rounded down and maxima up.
    Outward,
}

params! {
    /// Uniform parameters.
    pub struct BlockDigestParams {
        /// Number of KV heads.
        pub num_kv_heads: u32,
        /// Number of blocks to digest.
        pub touched: u32,
        /// First block of the bound cache of keys.
        pub first_block: u32,
        /// Number of blocks of the bound cache of keys; further blocks are skipped.
        pub num_blocks: u32,
    }
}

impl BlockDigestParams {
    /// Parameters for `touched` blocks of a cache whose blocks are all in one buffer.
    #[must_use]
    pub const fn new(num_kv_heads: u32, touched: u32) -> Self {
        Self { num_kv_heads, touched, first_block: 0, num_blocks: u32::MAX }
    }
}

bindings! {
    /// Buffers of `block_digest`.
    pub struct BlockDigestBuffers(BlockDigestParams) {
        /// Blocks to digest, `[n]`, of 1 to `block_size` tokens, or [`BlockTokens::NONE`].
        read touched: BlockTokens,
        /// Cache of keys from `first_block` on, in the layout of `KvShape`.
        read k_cache: KvWord,
        /// Digests, `[num_blocks, num_kv_heads, vectors, head_dim]`: minima and maxima, or means; f32 for caches in f32, else
        /// f16.
        write digests: u32,
    }
}

/// Returns the variant for one cache shape.
#[must_use]
pub fn variant(shape: &KvShape, digest: Digest) -> Variant {
    of(shape, digest, super::KEYS)
}

/// Returns the variant for the means of values: the cache of values is bound as `k_cache`.
#[must_use]
pub fn of_values(shape: &KvShape) -> Variant {
    of(shape, Digest::Mean, super::VALUES)
}

fn of(shape: &KvShape, digest: Digest, read: CacheSlot) -> Variant {
    shape.check();
    let halves = match digest {
        Digest::MinMax if shape.dtype == KvDtype::Int8 => Rounding::Outward,
        Digest::MinMax => Rounding::None,
        Digest::Mean => Rounding::Nearest,
    };
    let variant = Variant::new(&KERNEL)
        .set(slot::HEAD_DIM, shape.head_dim)
        .set(slot::BLOCK_SIZE, shape.block_size)
        .over_cache(read, shape)
        .set(DIGEST, digest)
        .set(WRITE, dtype(shape.dtype));
    if dtype(shape.dtype) == KvDtype::F32 { variant } else { variant.set(HALVES, halves) }
}

/// Checks `touched`, entries of (physical block, tokens), against a cache of `num_blocks` blocks. A dispatch may name
/// a block at most once; entries like [`BlockTokens::NONE`] name none.
///
/// # Errors
/// A block outside the cache, or tokens that are none or more than a page holds.
pub fn check(shape: &KvShape, touched: &[[u32; 2]], num_blocks: u32) -> Result<(), LaunchError> {
    let launch = Launch(KERNEL.name);
    let named = |(_, [block, _]): &(usize, &[u32; 2])| *block != BlockTokens::NONE.block;
    for (entry, [block, tokens]) in touched.iter().enumerate().filter(named) {
        launch.entry("block + 1", entry, u64::from(*block) + 1, num_blocks.into())?;
        launch.entry("tokens", entry, (*tokens).into(), shape.block_size.into())?;
        launch.not_zero("tokens of an entry", *tokens)?;
    }
    Ok(())
}

/// Returns the grid of kernels whose subgroups of 8 lanes reduce 8 channels of a block each.
pub(super) fn of_blocks(num_kv_heads: u32, blocks: u32, variant: &Variant) -> [u32; 3] {
    let [y, z, _] = super::flat_grid(blocks);
    [(num_kv_heads * (variant.number(slot::HEAD_DIM) / 8)).div_ceil(8), y, z]
}
