//! Streams: the order in which rows attend keys that pass through the ring, chunk by chunk.

use std::collections::VecDeque;
use std::ops::Range;

use attn_kernels::kernel::paged_prefill::Tile;
use attn_kernels::rows::DecodeRow;

use crate::kv::{KeysIn, ROWS};

/// Order in which some rows attend their keys.
#[derive(Debug)]
pub(in crate::decoder) struct Stream {
    /// First entry of the stream's block tables among those of all streams. These tables name blocks of ring slots
    /// instead of blocks of the pool.
    pub(in crate::decoder) tables_at: usize,
    /// Groups in the order of rows.
    pub(in crate::decoder) groups: Vec<RingGroup>,
}

/// Sequences that use the ring together.
#[derive(Debug)]
pub(in crate::decoder) struct RingGroup {
    /// Range of the group's rows in the step.
    pub(super) rows: Range<u32>,
    pub(in crate::decoder) chunks: Vec<KeyChunk>,
}

/// Keys of whole partitions that are attended at one time.
#[derive(Debug)]
pub(in crate::decoder) struct KeyChunk {
    /// Range of positions.
    pub(in crate::decoder) keys: Range<u32>,
    /// Copies of the chunk's blocks to a slot of the ring; none if all of them are attended in place.
    pub(in crate::decoder) parts: Vec<BlockCopies>,
    /// Buffers that hold the chunk's keys while they are attended.
    pub(in crate::decoder) at: KeysIn,
}

/// Copies of blocks from one source.
#[derive(Clone, Debug)]
pub(in crate::decoder) struct BlockCopies {
    pub(in crate::decoder) from: BlockSource,
    /// Whether the copies are done right before the chunk is attended, because the step writes the blocks or the host reads them.
    pub(in crate::decoder) late: bool,
    /// Range in the step's list of pairs, aligned for a binding.
    pub(in crate::decoder) pairs: Range<usize>,
}

/// Identifies a chunk of a layer in a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::decoder) struct LoadId {
    pub(in crate::decoder) layer: usize,
    /// First [table entry](Stream::tables_at) of the chunk's stream, which is unique.
    pub(in crate::decoder) stream: usize,
    pub(in crate::decoder) group: usize,
    pub(in crate::decoder) chunk: usize,
}

/// A chunk that is attended in a layer.
#[derive(Clone, Copy, Debug)]
pub(in crate::decoder) struct RingLoad<'a> {
    pub(in crate::decoder) id: LoadId,
    pub(in crate::decoder) contents: &'a KeyChunk,
}

impl RingLoad<'_> {
    /// Whether the chunk has to be copied.
    pub(in crate::decoder) fn moves(&self) -> bool {
        !self.contents.parts.is_empty()
    }
}

impl KeyChunk {
    /// Returns the numbers that the chunk's commands depend on, apart from the lengths of its copies within each segment.
    fn shape(&self) -> impl Iterator<Item = usize> {
        let at = match self.at {
            KeysIn::Layer => [0, 0],
            KeysIn::Segment(segment) => [1, segment],
            KeysIn::Slot(slot) => [2, slot],
        };
        let keys = [self.keys.start, self.keys.end].map(|key| key as usize);
        let parts = self
            .parts
            .iter()
            .flat_map(|part| [part.from as usize, usize::from(part.late), part.pairs.start, part.pairs.end]);
        keys.into_iter().chain(at).chain(parts)
    }
}

/// Sources of blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::decoder) enum BlockSource {
    /// Memory of the host.
    Host,
    /// The file on disk, which the host reads.
    Disk,
    /// The buffers of the layer that is attended.
    Resident,
    /// [Staging blocks](super::staging) of dirty blocks.
    Staging,
}

/// Alignment of tiles for a binding.
const TILES: usize = 8;

impl Stream {
    /// Returns the numbers that the stream's commands depend on.
    pub(super) fn shape(&self) -> impl Iterator<Item = usize> {
        let group = |group: &'_ RingGroup| [group.rows.start, group.rows.end].map(|row| row as usize);
        let groups = self.groups.iter().flat_map(move |of| {
            group(of).into_iter().chain([of.chunks.len()]).chain(of.chunks.iter().flat_map(KeyChunk::shape))
        });
        [self.tables_at, self.groups.len()].into_iter().chain(groups)
    }

    /// Returns a chunk of a group of rows, as it is attended in a layer.
    pub(in crate::decoder) fn load(&self, layer: usize, group: usize, chunk: usize) -> RingLoad<'_> {
        let contents = &self.groups[group].chunks[chunk];
        RingLoad { id: LoadId { layer, stream: self.tables_at, group, chunk }, contents }
    }

    /// Aligns the rows and tiles of every group for a binding. Empty rows and copies of tiles fill the gaps.
    pub(super) fn align(&self, decode: &mut Vec<DecodeRow>, tiles: &mut Vec<Tile>) {
        let mut all: VecDeque<Tile> = std::mem::take(tiles).into();
        let mut rows: VecDeque<DecodeRow> = std::mem::take(decode).into();
        for group in &self.groups {
            let gap = tiles.last().map(|last| (*last, tiles.len().next_multiple_of(TILES)));
            gap.into_iter().for_each(|(last, len)| tiles.resize(len, last));
            tiles.extend(std::iter::from_fn(|| all.pop_front_if(|tile| group.rows.contains(&tile.row))));
            decode.resize(decode.len().next_multiple_of(ROWS as usize), DecodeRow::default());
            decode.extend(std::iter::from_fn(|| rows.pop_front_if(|row| group.rows.contains(&row.row))));
        }
    }
}

impl RingGroup {
    /// Returns the range of the group's tiles in an [aligned](Stream::align) list.
    pub(in crate::decoder) fn tiles(&self, tiles: &[Tile]) -> Range<usize> {
        let own = |tile: &Tile| self.rows.contains(&tile.row);
        let first = tiles.iter().position(own).unwrap_or(0);
        let mut end = first;
        // Copies in the gap after them repeat the last row.
        while tiles.get(end).is_some_and(own) && (end == first || tiles[end].row > tiles[end - 1].row) {
            end += 1;
        }
        first..end
    }

    /// Returns the range of the group's decode rows in an [aligned](Stream::align) list.
    pub(in crate::decoder) fn rows(&self, rows: &[DecodeRow]) -> Range<usize> {
        let own = |row: &DecodeRow| row.len > 0 && self.rows.contains(&row.row);
        let first = rows.iter().position(own).unwrap_or(0);
        first..first + rows[first..].iter().take_while(|row| own(row)).count()
    }
}
