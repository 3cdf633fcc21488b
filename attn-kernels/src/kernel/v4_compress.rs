//! Entries of DeepSeek-V4's compressed caches.

use super::LaunchError;
use super::error::Launch;
use crate::Variant;
use crate::declare::{Listed, Sizes};
use crate::rows::{Angle, KvWord, NewEntry, PhysicalBlock};
use crate::slot::{self, Number};

kernel! {
    /// The kernel; [`V4CompressBuffers`] lists its bindings.
    "v4_compress"(V4CompressParams, V4CompressBuffers): Cache,
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
        /// Tokens from one entry to the next; 4 or 128 as published.
        pub ratio: u32,
        /// Tokens of a block of the state cache.
        pub state_block: u32,
        /// f32 from one block of the state cache to the next.
        pub page: u32,
        /// Epsilon of the RMS norm.
        pub eps: f32,
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
        /// Angles at the position of each entry, `[n, rope / 2]`.
        read angles: Angle,
        /// Entries, `[slots, dim]`.
        write out: f32,
    }
}

/// Shape of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct EntryShape {
    /// Channels.
    pub dim: u32,
    /// Channels that are rotated, the last ones.
    pub rope: u32,
    /// Windows of `ratio` tokens that an entry is made of: 1, or 2 where entries overlap.
    pub windows: u32,
}

/// Channels of an entry.
pub(crate) const DIM: Number = Number("DIM");
/// Windows of an entry.
pub(crate) const COFF: Number = Number("COFF");

/// The kernel for one shape of entries.
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

/// Workgroups for `entries` entries.
#[must_use]
pub fn grid(entries: u32) -> [u32; 3] {
    [entries, 1, 1]
}

/// Checks `entries` of one shape, `[position, first entry of its state table, slot, 0]`, and the blocks of `tables` that they
/// read, against a state cache of `num_blocks` blocks and `slots` entries of output.
///
/// # Errors
/// Channels that no kernel takes, a position that completes no entry, a table that names no block of the cache, or an entry
/// outside the output.
pub fn check(
    shape: &EntryShape,
    params: &V4CompressParams,
    entries: &[[u32; 4]],
    tables: (&[u32], u32),
    slots: usize,
) -> Result<(), LaunchError> {
    let EntryShape { dim, rope, windows } = *shape;
    let launch = Launch(KERNEL.name);
    launch.multiple("channels of an entry", dim, 2)?;
    launch.at_most("channels of an entry", dim.into(), 2048)?;
    launch.multiple("rotated channels", rope, 2)?;
    launch.at_most("rotated channels", rope.into(), dim.into())?;
    launch.not_zero("ratio", params.ratio)?;
    launch.not_zero("state block", params.state_block)?;
    launch.at_most("entries", entries.len() as u64, 65_535)?;
    for (entry, &[position, table, slot, _]) in entries.iter().enumerate() {
        launch.multiple("position + 1", position.saturating_add(1), params.ratio)?;
        let end = position.saturating_add(1);
        let first = end.saturating_sub(windows.saturating_mul(params.ratio));
        launch.tokens(entry, tables, table, [first, end], params.state_block)?;
        launch.entry("slot + 1", entry, u64::from(slot) + 1, slots as u64)?;
    }
    Ok(())
}
