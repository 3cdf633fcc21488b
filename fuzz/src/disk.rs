//! The files of a disk tier: a program of changes, some of which forge checksums as a local user could.

use std::path::Path;
use std::sync::Arc;

use kvblock::BlockHash;
use prefetch::testing::{FakeTier, SimVolume};
use prefetch::tier::{BlockLayout, DiskConfig, DiskTier, Stored, Tier as _, TierError};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Number of blocks in the tier before the changes.
const BLOCKS: u8 = 6;
/// The description of this store in the header of its index.
const ABOUT: &str = "format 2, 3 shards of 40 bytes, fuzzed";
/// Bytes of the header.
const HEADER_BYTES: usize = 4096;
/// Hash, order of writing, and three checksums; after them is the record's own.
const RECORD_BYTES: usize = 32 + 8 + 3 * 8;

fn layout() -> BlockLayout {
    BlockLayout::new(3, 40).expect("three small shards")
}

fn key(n: u8) -> BlockHash {
    BlockHash::from_bytes([n; 32])
}

fn block(n: u8) -> Vec<u8> {
    FakeTier::contents(layout(), key(n))
}

fn open(volume: &SimVolume) -> Result<DiskTier, TierError> {
    let config = DiskConfig::new(Path::new("simulated"), layout(), "fuzzed", 8 * 4096);
    DiskTier::on(Arc::new(volume.clone()), config)
}

/// Changes the files of a closed tier, opens it again, reads all blocks, and writes them anew. Says whether a block survived.
pub fn run(bytes: &[u8]) -> bool {
    let volume = SimVolume::new(1, 1 << 20);
    let tier = open(&volume).expect("an empty disk");
    (0..BLOCKS).for_each(|n| assert!(matches!(tier.write(key(n), &block(n)), Ok(Stored::Written))));
    assert!(tier.flush().is_ok(), "a disk without faults");
    drop(tier);
    let mut program = Program(bytes);
    for _ in 0..16 {
        if program.0.is_empty() {
            break;
        }
        program.step(&volume);
    }
    let Ok(tier) = open(&volume) else { return false };
    let mut into = vec![0; layout().block_bytes()];
    let mut survived = false;
    for n in 0..BLOCKS + 2 {
        if tier.read_block(key(n), &mut into).is_ok() {
            assert_eq!(into, block(n), "block {n}");
            survived = true;
        }
    }
    // It goes on: every block can be written again, and is then there.
    for n in 0..BLOCKS + 2 {
        let written = tier.write(key(n), &block(n));
        assert!(written.is_ok(), "block {n}: {:?}", written.err());
        let read = tier.read_block(key(n), &mut into);
        assert!(read.is_ok() && into == block(n), "block {n}: {:?}", read.err());
    }
    survived
}

/// Bytes that are still to be read.
struct Program<'a>(&'a [u8]);

impl Program<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.byte()).collect()
    }

    /// A place in a file of `len` bytes, or a little after its end.
    fn place(&mut self, len: usize) -> usize {
        usize::from(self.byte()) << 8 & 0x7f00 | usize::from(self.byte()).min(len + 8)
    }

    fn step(&mut self, volume: &SimVolume) {
        match self.byte() % 5 {
            0 => self.change(volume, |program, file| {
                let (at, len) = (program.place(file.len()), usize::from(program.byte()));
                let new = program.bytes(len);
                file.resize(file.len().max(at + len), 0);
                file[at..at + len].copy_from_slice(&new);
            }),
            1 => self.change(volume, |program, file| {
                let len = program.place(file.len());
                file.truncate(len);
            }),
            2 => {
                let (slot, record) = (self.byte() % 12, self.bytes(RECORD_BYTES));
                forge(volume, slot, &record);
            }
            3 => {
                let (from, to, stamp) = (self.byte() % 8, self.byte() % 12, self.bytes(8));
                let at = place_of(from);
                let mut record = Vec::new();
                volume.change("blocks.index", |file| {
                    record = file.get(at..at + RECORD_BYTES).unwrap_or(&[0; RECORD_BYTES]).to_vec();
                });
                record[32..40].copy_from_slice(&stamp);
                forge(volume, to, &record);
            }
            // A bit of a file.
            _ => self.change(volume, |program, file| {
                let at = program.place(file.len());
                let bit = program.byte() % 8;
                if let Some(byte) = file.get_mut(at) {
                    *byte ^= 1 << bit;
                }
            }),
        }
    }

    fn change(&mut self, volume: &SimVolume, change: impl FnOnce(&mut Self, &mut Vec<u8>)) {
        let names = volume.names();
        let name = &names[usize::from(self.byte()) % names.len()];
        volume.change(name, |file| change(self, file));
    }
}

fn place_of(slot: u8) -> usize {
    HEADER_BYTES + usize::from(slot) * (RECORD_BYTES + 8)
}

/// Writes a record with the right checksum.
fn forge(volume: &SimVolume, slot: u8, record: &[u8]) {
    let check = xxh3_64_with_seed(record, xxh3_64(ABOUT.as_bytes()).wrapping_add(slot.into()));
    let record = [record, &check.to_le_bytes()].concat();
    let at = place_of(slot);
    volume.change("blocks.index", |file| {
        file.resize(file.len().max(at + record.len()), 0);
        file[at..at + record.len()].copy_from_slice(&record);
    });
}
