//! Binary hashes of keys and queries, for retrieval by Hamming distance.

use super::error::Launch;
use super::{KvShape, LaunchError};
use crate::Variant;
use crate::declare::{Listed, Sizes, TYPES};
use crate::rows::KvWord;
use crate::slot::{self, OneOf};

kernel! {
    /// The kernel; [`HashCodesBuffers`] lists its bindings.
    "hash_codes"(HashCodesParams, HashCodesBuffers): Selection,
    grid: |params, _| [params.entries.div_ceil(ENTRIES), params.num_kv_heads, 1],
    listed: listed,
    variants: "keys f16, f32, fp8, int8; queries",
    bytes: "`4 * D * bits` for 4 vectors, and the vectors",
    cases: crate::self_test::retrieval::hash_codes,
}

fn listed(sizes: &Sizes) -> Listed {
    let keys = sizes.each(&TYPES, |shape| variant(shape, HashSource::Keys));
    let keys = keys.into_iter().map(|(dtype, variant)| (format!("keys-{dtype}"), variant));
    keys.chain([("queries".into(), variant(&sizes.f16(), HashSource::Queries))]).collect()
}

/// Vectors that are hashed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum HashSource {
    /// Keys of the cache, with slots as entries. Codes are `[num_blocks, num_kv_heads, block_size, words]`.
    Keys,
    /// Mean queries of a KV head, with rows of q as entries. Codes are `[n, num_kv_heads, words]`.
    Queries,
}

params! {
    /// Uniform parameters.
    pub struct HashCodesParams {
        /// Number of KV heads.
        pub num_kv_heads: u32,
        /// Number of vectors to hash.
        pub entries: u32,
        /// Number of query heads a KV head.
        pub group: u32,
        /// Number of f32 from one query row to the next.
        pub q_stride: u32,
        /// First channel that is hashed, a multiple of 8.
        pub first_channel: u32,
        /// Number of channels that are hashed, a multiple of 8.
        pub channels: u32,
        /// Number of bits of the hash of these channels, a multiple of 32.
        pub bits: u32,
        /// Index in a code of the first word that is written.
        pub first_word: u32,
        /// Number of words of a code.
        pub words: u32,
        /// First block of the cache of keys.
        pub first_block: u32,
        /// Number of blocks of the cache of keys; slots of further blocks are skipped. `u32::MAX` if all blocks are
        /// in one buffer.
        pub num_blocks: u32,
    }
}

bindings! {
    /// Buffers of `hash_codes`.
    pub struct HashCodesBuffers(HashCodesParams) {
        /// Slots of keys, or rows of queries, `[n]`, or [`NO_ENTRY`].
        read entries: u32,
        /// Cache of keys from `first_block` on, if keys are hashed.
        read k_cache: KvWord = None,
        /// Queries, rows of `q_stride` f32, if queries are hashed.
        read q: f32 = None,
        /// Projection, `[channels, bits]`, row-major.
        read weights: f32,
        /// Codes of `words` words each; the dispatch writes `bits / 32` of them from `first_word` on.
        write codes: u32,
    }
}

/// Entry that names no vector: it pads lists, so that equal steps have lists of one length.
pub const NO_ENTRY: u32 = u32::MAX;

/// Number of vectors that a workgroup hashes.
const ENTRIES: u32 = 4;

/// Vectors that a variant hashes.
pub(crate) const SOURCE: OneOf<HashSource> =
    OneOf::new("source", &[(HashSource::Keys, "hash_keys"), (HashSource::Queries, "hash_queries")]);

/// Returns the variant for one cache shape.
#[must_use]
pub fn variant(shape: &KvShape, source: HashSource) -> Variant {
    shape.check();
    let variant = Variant::new(&KERNEL)
        .set(slot::HEAD_DIM, shape.head_dim)
        .set(slot::BLOCK_SIZE, shape.block_size)
        .set(SOURCE, source);
    match source {
        HashSource::Queries => variant.with("q"),
        HashSource::Keys => variant.over_cache(super::KEYS, shape).with("k_cache"),
    }
}

/// Checks the parameters, and `entries` other than [`NO_ENTRY`] against `limit`: the slots of the cache, or the rows of q.
///
/// # Errors
/// Channels or bits that do not divide, or an entry out of range.
pub fn check(
    shape: &KvShape,
    params: &HashCodesParams,
    entries: &[u32],
    limit: usize,
) -> Result<(), LaunchError> {
    let launch = Launch(KERNEL.name);
    launch.not_zero("query heads a KV head", params.group)?;
    launch.multiple("first channel", params.first_channel, 8)?;
    launch.multiple("channels", params.channels, 8)?;
    launch.multiple("bits", params.bits, 32)?;
    let channels = u64::from(params.first_channel) + u64::from(params.channels);
    launch.at_most("channel after the last", channels, shape.head_dim.into())?;
    let words = u64::from(params.first_word) + u64::from(params.bits / 32);
    launch.at_most("word after the last", words, params.words.into())?;
    launch.at_most("entries", params.entries.into(), entries.len() as u64)?;
    launch.at_most("workgroups of entries", params.entries.div_ceil(ENTRIES).into(), 65_535)?;
    for (index, entry) in entries.iter().enumerate().filter(|(_, entry)| **entry != NO_ENTRY) {
        launch.entry("index + 1", index, u64::from(*entry) + 1, limit as u64)?;
    }
    Ok(())
}
