//! Entries of DeepSeek-V4's compressed caches.

use crate::Variant;
use crate::declare::{Listed, Sizes};
use crate::rows::{Angle, KvWord, NewEntry, PhysicalBlock};
use crate::slot::{self, Number};

kernel! {
    /// The kernel; [`V4CompressBuffers`] lists its bindings.
    "v4_compress"(V4CompressParams, V4CompressBuffers): Cache,
    grid: |params, _| [params.entries, 1, 1],
    listed: listed,
    variants: "entries of one window or two",
    bytes: "`8 * D` per token of an entry's windows",
    cases: crate::self_test::v4_compress::cases,
}

fn listed(_: &Sizes) -> Listed {
    [("c4", 2), ("c128", 1)]
        .map(|(part, windows)| (part.into(), variant(&EntryShape { dim: 512, rope: 64, windows })))
        .into()
}

params! {
    /// Uniform parameters.
    pub struct V4CompressParams {
        /// Number of tokens from one entry to the next; 4 or 128 as published.
        pub ratio: u32,
        /// Number of tokens of a block of the state cache.
        pub state_block: u32,
        /// Number of f32 from one block of the state cache to the next.
        pub page: u32,
        /// Epsilon of the RMS norm.
        pub eps: f32,
        /// Number of entries to compress, at most 65,535.
        pub entries: u32,
    }
}

bindings! {
    /// Buffers of `v4_compress`.
    pub struct V4CompressBuffers(V4CompressParams) {
        /// States, blocks of `state_block` tokens `[2, windows * dim]`, `page` words from block to block: values, then
        /// scores without the positional embedding.
        read states: KvWord,
        /// Positional embedding, `[ratio, windows * dim]`, added to the score of the token at position `p` as `ape[p %
        /// ratio]`.
        read ape: f32,
        /// Weight of the RMS norm, `[dim]`.
        read norm: f32,
        /// Entries to complete, `[n]`.
        read entries: NewEntry,
        /// Block tables of the cache of states.
        read tables: PhysicalBlock,
        /// Cosines and sines for rotation at the position of each entry, `[n, rope / 2]`.
        read angles: Angle,
        /// Entries, `[slots, dim]`.
        write out: f32,
    }
}

/// Shape of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct EntryShape {
    /// Number of channels.
    pub dim: u32,
    /// Number of channels that are rotated: the last ones.
    pub rope: u32,
    /// Number of windows of `ratio` tokens that an entry is made of: 1, or 2 if entries overlap.
    pub windows: u32,
}

/// Number of channels of an entry.
pub(crate) const DIM: Number = Number("DIM");
/// Number of windows of an entry.
pub(crate) const COFF: Number = Number("COFF");

/// Returns the variant for one shape of entries.
///
/// # Panics
/// When `dim` is odd or over 2048, `rope` is odd or over `dim`, or there are neither one nor two windows.
#[must_use]
pub fn variant(shape: &EntryShape) -> Variant {
    let EntryShape { dim, rope, windows } = *shape;
    assert!(dim.is_multiple_of(2) && dim <= 2048, "{dim} channels of an entry");
    assert!(rope.is_multiple_of(2) && rope <= dim, "{rope} rotated channels of {dim}");
    assert!((1..=2).contains(&windows), "{windows} windows of an entry");
    Variant::new(&KERNEL).set(DIM, dim).set(COFF, windows).set(slot::ROPE, rope)
}
