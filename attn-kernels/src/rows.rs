//! Elements of the buffers that kernels read: entries of a step's lists, and words of caches and block tables. Each
//! has a type, so that no buffer can be bound in place of another.

use bytemuck::{Pod, Zeroable};

/// Word of a paged cache, in the layout of [`KvShape`](crate::kernel::KvShape) or of another shape of blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Pod, Zeroable)]
#[repr(transparent)]
pub struct KvWord(pub u32);

/// Entry of a block table: the number of a block in its pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Pod, Zeroable)]
#[repr(transparent)]
pub struct PhysicalBlock(pub u32);

/// Row whose keys one workgroup attends alone, or several workgroups attend in partitions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct DecodeRow {
    /// Row of the step.
    pub row: u32,
    /// Number of tokens up to the row, itself included; 0 for a row that only fills a gap.
    pub len: u32,
    /// First entry of the row's block table in the step's tables.
    pub table: u32,
    /// First key that the row sees.
    pub first_key: u32,
}

impl DecodeRow {
    /// Counts the keys that the row sees.
    #[must_use]
    pub fn keys(&self) -> u32 {
        self.len - self.first_key
    }
}

/// Row that attends slots of a window and then slots of compressed entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct SlotRow {
    /// Row of the step.
    pub row: u32,
    /// Number of keys in all.
    pub keys: u32,
    /// Number of keys in the window.
    pub in_window: u32,
    /// Unused word that fills the row to four words.
    pad: u32,
}

impl SlotRow {
    /// Creates a row of the step with `keys` keys in all; the first `in_window` are in the window.
    #[must_use]
    pub fn new(row: u32, keys: u32, in_window: u32) -> Self {
        Self { row, keys, in_window, pad: 0 }
    }
}

/// Run of positions whose slots a kernel looks up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct Span {
    /// First position of the span.
    pub first: u32,
    /// Number of positions.
    pub len: u32,
    /// Place of the first slot in the list of slots.
    pub to: u32,
    /// First entry of the block table.
    pub table: u32,
}

/// Entry that a step completes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct NewEntry {
    /// Position of the last token of the entry.
    pub position: u32,
    /// First entry of the block table of states.
    pub table: u32,
    /// Place of the entry among the step's entries.
    pub to: u32,
    /// Unused word that fills the row to four words.
    pad: u32,
}

impl NewEntry {
    /// Creates the entry that the token at `position` completes, from the states whose block table begins at entry
    /// `table`.
    #[must_use]
    pub fn new(position: u32, table: u32, to: u32) -> Self {
        Self { position, table, to, pad: 0 }
    }
}

/// Row whose query scores keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct KeyRow {
    /// Row of the step.
    pub row: u32,
    /// First key that the row scores.
    pub first_key: u32,
    /// End of the keys that the row scores.
    pub end: u32,
    /// First entry of the row's block table.
    pub table: u32,
}

/// A row of scores that top-k selects from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct TopRow {
    /// Place of the row's first score.
    pub first: u32,
    /// Number of scores of the row.
    pub scores: u32,
    /// Number of scores that are selected.
    pub k: u32,
    /// First entry of the row's block table, which turns places into slots.
    pub table: u32,
}

/// List of selected blocks whose pages are requested.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct PageRequest {
    /// Index of the list group.
    pub list: u32,
    /// Number of tokens that the rows of the group see.
    pub len: u32,
    /// First entry of the group's block table.
    pub table: u32,
    /// Unused word that fills the row to four words.
    pad: u32,
}

impl PageRequest {
    /// Creates a request for the pages of one list group, whose rows see `len` tokens of the block table that begins
    /// at entry `table`.
    #[must_use]
    pub fn new(list: u32, len: u32, table: u32) -> Self {
        Self { list, len, table, pad: 0 }
    }
}

/// Block that a step writes, or that a kernel digests.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct BlockTokens {
    /// Number of the block in its pool.
    pub block: u32,
    /// Number of tokens in the block, if a kernel needs it.
    pub tokens: u32,
}

impl BlockTokens {
    /// An entry that names no block: it pads lists, so that equal steps have lists of one length.
    pub const NONE: Self = Self { block: u32::MAX, tokens: 0 };
}

/// Block that a step wrote, and the place of its contents.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct WrittenBlock {
    /// Number of the block in its pool.
    pub block: u32,
    /// Number of the block in the buffers that are read.
    pub from: u32,
}

/// Lists of one chunk or row, whose lengths are counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct ListSpan {
    /// Index of the first list.
    pub first: u32,
    /// Number of lists.
    pub lists: u32,
}

/// Decode row whose lists are kept from the step that makes them to the steps that follow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct KeptRow {
    /// Index of the place where the sequence's lists are kept, or [`NONE`](Self::NONE) for a row that keeps nothing.
    pub slot: u32,
    /// Number of blocks of the sequence in the step that made the row's lists.
    pub then: u32,
    /// Number of blocks of the sequence now.
    pub blocks: u32,
    /// Flag: 1 if this step makes the row's lists, else 0.
    pub made: u32,
}

impl KeptRow {
    /// Slot number of a row that keeps nothing.
    pub const NONE: u32 = u32::MAX;
}

/// Block that is copied from one buffer to another.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct BlockCopy {
    /// Block that is read.
    pub from: u32,
    /// Block that is written.
    pub to: u32,
}

impl BlockCopy {
    /// An entry that copies nothing, for `swap_blocks`: it pads lists, so that equal steps have lists of one length.
    pub const NONE: Self = Self { from: 0, to: u32::MAX };

    /// Whether the entry copies a block.
    #[must_use]
    pub const fn is_some(&self) -> bool {
        self.to != Self::NONE.to
    }
}

/// Rotation of a pair of dimensions.
#[derive(Clone, Copy, PartialEq, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct Angle {
    /// Cosine of the angle.
    pub cos: f32,
    /// Sine of the angle.
    pub sin: f32,
}
