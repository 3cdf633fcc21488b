//! The index file: a record for each slot, which names the block in it.
//!
//! ```text
//! header: magic, length of the description, description, digest     up to a multiple of 4096 bytes
//! record of slot 0: hash, order of writing, checksum of each shard, checksum of the record
//! record of slot 1: ...
//! ```
//!
//! Records have fixed places, so that room for all of them is taken before the first block is written, and a damaged
//! one costs its own block only. The checksum of a record depends on description and slot: a record of another store
//! or slot is no record. (A database keeps these rows as well, but redb panics on most damaged files, and its file
//! grows when the disk is full.)

use std::sync::Arc;

use kvblock::BlockHash;
use rustc_hash::FxHashSet;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::failed;
use super::header::{self, Header};
use crate::tier::{BlockLayout, TierError, TierName, TierWarning};
use crate::volume::{Access, Volume, VolumeFile, read_exact, write_all};

/// Format version of slabs and index.
const FORMAT: u32 = 2;
const NAME: &str = "blocks.index";
/// Name of an index file that is not finished. Under the final name, an index cut short by a kill would look damaged.
const UNFINISHED: &str = "blocks.index.new";
/// New name of a damaged index file, which a new index replaces.
const DAMAGED: &str = "blocks.index.damaged";
/// Name of the index file of format 1.
const FORMER: &str = "index.redb";
/// Number of bytes of a record without the checksums of its shards: hash, order of writing, and checksum of the
/// record.
const FIXED_BYTES: usize = 32 + 8 + 8;
/// Number of bytes of records that are read at a time.
const CHUNK_BYTES: usize = 1 << 20;

/// A block of the index file.
#[derive(Clone)]
pub(super) struct SlotRecord {
    pub(super) key: BlockHash,
    pub(super) slot: u32,
    /// `[shards]`
    pub(super) sums: Arc<[u64]>,
}

/// Identity of the blocks that an index lists.
#[derive(Clone)]
pub(super) struct Contents {
    tier: TierName,
    /// Format, layout and namespace.
    about: String,
    shards: usize,
    /// Number of slots of the capacity.
    slots: u32,
}

impl Contents {
    pub(super) fn new(tier: TierName, layout: BlockLayout, namespace: &str, slots: u32) -> Self {
        let (shards, shard_bytes) = (layout.shards(), layout.shard_bytes());
        let about = format!("format {FORMAT}, {shards} shards of {shard_bytes} bytes, {namespace}");
        Self { tier, about, shards: shards as usize, slots }
    }

    fn record_bytes(&self) -> usize {
        FIXED_BYTES + 8 * self.shards
    }

    fn offset(&self, slot: u32) -> u64 {
        header::bytes(&self.about) + u64::from(slot) * self.record_bytes() as u64
    }

    fn failed(&self, action: &'static str) -> impl Fn(std::io::Error) -> TierError {
        let tier = self.tier;
        move |error| failed(tier, action, error)
    }
}

pub(super) struct Catalog {
    contents: Contents,
    file: Box<dyn VolumeFile>,
    /// Number that distinguishes records of this store from others.
    seed: u64,
    /// Number that orders the next block among the written ones.
    next_stamp: u64,
}

/// An open index, and the records found in it.
pub(super) struct Opened {
    pub(super) catalog: Catalog,
    /// Records in the order of writing.
    pub(super) rows: Vec<SlotRecord>,
    /// Slots with invalid records, which must be cleared before the slots are used.
    pub(super) unclear: Vec<u32>,
    /// Number of slots whose records have room.
    pub(super) slots: u32,
    pub(super) warnings: Vec<TierWarning>,
}

/// The records of a file.
struct Found {
    /// Records in the order of writing.
    rows: Vec<SlotRecord>,
    /// Slots of records that are damaged or name a block twice.
    unclear: Vec<u32>,
    /// Number of records.
    records: u32,
}

impl Catalog {
    /// Opens or creates the index file.
    pub(super) fn open(volume: &dyn Volume, contents: &Contents) -> Result<Opened, TierError> {
        let (tier, expected) = (contents.tier, &contents.about);
        let access = if volume.is_writable() { Access::Write } else { Access::Read };
        let file = match volume.open(NAME, access, false) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && volume.is_writable() => {
                if volume.open(FORMER, Access::Read, false).is_ok() {
                    let found = format!("format 1 ({FORMER})").into();
                    return Err(TierError::Mismatch { tier, found, expected: (&**expected).into() });
                }
                let (catalog, slots) = Self::create(volume, contents, &[])?;
                let warnings = no_room(contents, slots);
                return Ok(Opened { catalog, rows: Vec::new(), unclear: Vec::new(), slots, warnings });
            }
            Err(error) => return Err(failed(tier, "opening the index", error)),
        };
        match header::read(&*file) {
            Header::Of(about) if about == *expected => Self::resume(volume, contents, file),
            Header::Of(about) => {
                Err(TierError::Mismatch { tier, found: about.into(), expected: (&**expected).into() })
            }
            Header::Damaged(reason) => Self::rebuild(volume, contents, file, reason),
        }
    }

    fn new(contents: &Contents, file: Box<dyn VolumeFile>) -> Self {
        let seed = xxh3_64(contents.about.as_bytes());
        Self { contents: contents.clone(), file, seed, next_stamp: 0 }
    }

    /// Opens an index file that has the right header.
    fn resume(
        volume: &dyn Volume,
        contents: &Contents,
        file: Box<dyn VolumeFile>,
    ) -> Result<Opened, TierError> {
        let mut catalog = Self::new(contents, file);
        let Found { rows, mut unclear, records } = catalog.read_records()?;
        let mut warnings = Vec::new();
        if !unclear.is_empty() {
            warnings.push(TierWarning::DamagedRecords { tier: contents.tier, records: unclear.len() });
        }
        let mut slots = contents.slots;
        if volume.is_writable() {
            slots = reserve(&*catalog.file, contents).max(records.min(contents.slots));
            warnings.extend(no_room(contents, slots));
            unclear.retain(|&slot| slot < slots);
        }
        Ok(Opened { catalog, rows, unclear, slots, warnings })
    }

    /// Renames an index file without a valid header, and makes a new one from its records that belong to this store.
    fn rebuild(
        volume: &dyn Volume,
        contents: &Contents,
        file: Box<dyn VolumeFile>,
        reason: &'static str,
    ) -> Result<Opened, TierError> {
        let mut damaged = Self::new(contents, file);
        let Found { mut rows, .. } = damaged.read_records()?;
        let kept = if volume.is_writable() { DAMAGED } else { NAME };
        let rebuilt =
            |blocks| TierWarning::IndexRebuilt { tier: contents.tier, reason, kept: kept.into(), blocks };
        if !volume.is_writable() {
            let (warnings, slots) = (vec![rebuilt(rows.len())], contents.slots);
            return Ok(Opened { catalog: damaged, rows, unclear: Vec::new(), slots, warnings });
        }
        rows.retain(|row| row.slot < contents.slots);
        volume.rename(NAME, DAMAGED).map_err(contents.failed("setting the damaged index aside"))?;
        let (catalog, slots) = Self::create(volume, contents, &rows)?;
        rows.retain(|row| row.slot < slots);
        let warnings = no_room(contents, slots).into_iter().chain([rebuilt(rows.len())]).collect();
        Ok(Opened { catalog, rows, unclear: Vec::new(), slots, warnings })
    }

    /// Makes an index file that contains `rows`, with space for all slots, or for as many as fit on the disk.
    fn create(
        volume: &dyn Volume,
        contents: &Contents,
        rows: &[SlotRecord],
    ) -> Result<(Self, u32), TierError> {
        let file = volume.open(UNFINISHED, Access::Replace, false);
        let file = file.map_err(contents.failed("creating the index"))?;
        let slots = reserve(&*file, contents);
        if slots == 0 {
            let full = std::io::ErrorKind::StorageFull.into();
            return Err(failed(contents.tier, "taking room for the index", full));
        }
        let mut catalog = Self::new(contents, file);
        let header = header::encode(&contents.about);
        write_all(&*catalog.file, &header, 0).map_err(contents.failed("writing the index"))?;
        let rows: Vec<SlotRecord> = rows.iter().filter(|row| row.slot < slots).cloned().collect();
        catalog.commit(&[], &rows)?;
        let named = volume.rename(UNFINISHED, NAME).and_then(|()| volume.sync_names());
        named.map_err(contents.failed("naming the index"))?;
        Ok((catalog, slots))
    }

    /// Clears the records of `cleared` slots and writes the records of `added` blocks, durably. After a failure, the call can
    /// be repeated.
    pub(super) fn commit(&mut self, cleared: &[u32], added: &[SlotRecord]) -> Result<(), TierError> {
        self.try_commit(cleared, added).map_err(self.contents.failed("committing the index"))
    }

    fn try_commit(&mut self, cleared: &[u32], added: &[SlotRecord]) -> std::io::Result<()> {
        let empty = vec![0; self.contents.record_bytes()];
        for &slot in cleared {
            write_all(&*self.file, &empty, self.contents.offset(slot))?;
        }
        for row in added {
            write_all(&*self.file, &self.record(row), self.contents.offset(row.slot))?;
            self.next_stamp = self.next_stamp.saturating_add(1);
        }
        self.file.sync()
    }

    fn record(&self, row: &SlotRecord) -> Vec<u8> {
        let mut record = Vec::with_capacity(self.contents.record_bytes());
        record.extend(row.key.as_bytes());
        record.extend(self.next_stamp.to_le_bytes());
        record.extend(row.sums.iter().flat_map(|sum| sum.to_le_bytes()));
        record.extend(self.check(row.slot, &record).to_le_bytes());
        record
    }

    fn check(&self, slot: u32, record: &[u8]) -> u64 {
        xxh3_64_with_seed(record, self.seed.wrapping_add(slot.into()))
    }

    fn read_records(&mut self) -> Result<Found, TierError> {
        let record_bytes = self.contents.record_bytes();
        let bytes = self.file.size().map_err(self.contents.failed("reading the index"))?;
        let bytes = bytes.saturating_sub(self.contents.offset(0));
        let records = u32::try_from(bytes / record_bytes as u64).unwrap_or(u32::MAX);
        let per_chunk = (CHUNK_BYTES / record_bytes).max(1);
        let (mut rows, mut unclear) = (Vec::new(), Vec::new());
        for first in (0..records).step_by(per_chunk) {
            let mut chunk = vec![0; per_chunk.min((records - first) as usize) * record_bytes];
            let whole = read_exact(&*self.file, &mut chunk, self.contents.offset(first)).is_ok();
            for (slot, record) in (first..).zip(chunk.chunks_exact_mut(record_bytes)) {
                // Bad media lose no more than they must.
                let is_read = whole || read_exact(&*self.file, record, self.contents.offset(slot)).is_ok();
                match self.parse(slot, record) {
                    Some(row) if is_read => rows.push(row),
                    _ if is_read && record.iter().all(|&byte| byte == 0) => {}
                    _ => unclear.push(slot),
                }
            }
        }
        rows.sort_unstable_by_key(|(stamp, _)| *stamp);
        self.next_stamp = rows.last().map_or(0, |(stamp, _)| stamp.saturating_add(1));
        // A block has one slot: the one that was written last.
        let mut seen = FxHashSet::default();
        let (mut last, others): (Vec<SlotRecord>, Vec<SlotRecord>) =
            rows.into_iter().rev().map(|(_, row)| row).partition(|row| seen.insert(row.key));
        unclear.extend(others.iter().map(|row| row.slot));
        last.reverse();
        Ok(Found { rows: last, unclear, records })
    }

    /// The block that a record names, and its order of writing.
    fn parse(&self, slot: u32, record: &[u8]) -> Option<(u64, SlotRecord)> {
        let (record, check) = record.split_last_chunk()?;
        if u64::from_le_bytes(*check) != self.check(slot, record) {
            return None;
        }
        let (key, record) = record.split_first_chunk()?;
        let (stamp, sums) = record.split_first_chunk()?;
        let sums = sums.as_chunks().0.iter().map(|sum| u64::from_le_bytes(*sum)).collect();
        Some((u64::from_le_bytes(*stamp), SlotRecord { key: BlockHash::from_bytes(*key), slot, sums }))
    }
}

/// Reserves file space for the records of all slots, or of fewer if the disk is too full. Returns the number of
/// slots.
fn reserve(file: &dyn VolumeFile, contents: &Contents) -> u32 {
    let mut slots = contents.slots;
    while slots > 0 && file.reserve(contents.offset(slots)).is_err() {
        slots /= 2;
    }
    slots
}

fn no_room(contents: &Contents, blocks: u32) -> Vec<TierWarning> {
    let (tier, capacity_blocks) = (contents.tier, contents.slots);
    let short = blocks < capacity_blocks;
    short.then_some(TierWarning::NoRoomForIndex { tier, blocks, capacity_blocks }).into_iter().collect()
}
