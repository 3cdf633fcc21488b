//! The index file: what it is of, what it refuses, and damage of every kind.

use std::path::{Path, PathBuf};

use insta::assert_snapshot;
use prefetch::tier::{BlockLayout, DiskConfig, DiskTier, Stored, Tier as _, TierError, TierWarning};
use proptest::prelude::*;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed, xxh3_128};

use super::{config, held};
use crate::conformance::{block, cases, key, layout};

const ABOUT: &str = "format 2, 3 shards of 40 bytes, test model, f16";
/// Records follow a header of one page: hash, order of writing, three checksums, checksum of the record.
const RECORDS: usize = 4096;
const RECORD: usize = 32 + 8 + 3 * 8 + 8;

fn index(directory: &Path) -> PathBuf {
    directory.join("blocks.index")
}

fn change(directory: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = std::fs::read(index(directory)).unwrap();
    change(&mut bytes);
    std::fs::write(index(directory), bytes).unwrap();
}

/// A store of some blocks, in slots of their numbers.
fn filled(blocks: u16) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let tier = DiskTier::open(config(directory.path(), 8)).unwrap();
    (0..blocks).for_each(|n| assert_eq!(tier.write(key(n), &block(n)).unwrap(), Stored::Written));
    directory
}

fn header(about: &str) -> Vec<u8> {
    let mut header = b"pagoda KV index\n".to_vec();
    header.extend(u32::try_from(about.len()).unwrap().to_le_bytes());
    header.extend(about.as_bytes());
    let digest = xxh3_128(&header);
    header.extend(digest.to_le_bytes());
    header
}

/// The record in a slot, with a checksum that is right.
fn sealed(slot: usize, record: &[u8]) -> Vec<u8> {
    let check = xxh3_64_with_seed(&record[..RECORD - 8], xxh3_64(ABOUT.as_bytes()) + slot as u64);
    [&record[..RECORD - 8], &check.to_le_bytes()].concat()
}

fn at(slot: usize) -> std::ops::Range<usize> {
    RECORDS + slot * RECORD..RECORDS + (slot + 1) * RECORD
}

#[test]
fn a_store_of_something_else_is_refused_by_its_header() {
    let directory = filled(1);
    let config = || config(directory.path(), 8);
    let refused = |config| DiskTier::open(config).err().unwrap().to_string();
    let namespace = |namespace: &str| {
        let mut config = config();
        config.namespace = namespace.into();
        refused(config)
    };
    assert_snapshot!(namespace("other model, f16"), @"disk tier holds blocks of another kind: test model there, other model here; give these a place of their own, or empty that one");
    assert_snapshot!(namespace("test model, f32"), @"disk tier holds blocks of another kind: f16 there, f32 here; give these a place of their own, or empty that one");
    let layout = |shards, bytes| {
        let mut config = config();
        config.layout = BlockLayout::new(shards, bytes).unwrap();
        refused(config)
    };
    assert_snapshot!(layout(3, 80), @"disk tier holds blocks of another kind: 3 shards of 40 bytes there, 3 shards of 80 bytes here; give these a place of their own, or empty that one");
    assert_snapshot!(layout(1, 120), @"disk tier holds blocks of another kind: 3 shards of 40 bytes there, 1 shards of 120 bytes here; give these a place of their own, or empty that one");
    assert_eq!(held(&DiskTier::open(config()).unwrap(), 4), [0], "a refusal leaves the store as it was");

    // A version to come writes its own number there.
    let later = header("format 3, 3 shards of 40 bytes, test model, f16");
    change(directory.path(), |bytes| bytes[..later.len()].copy_from_slice(&later));
    assert_snapshot!(refused(config()), @"disk tier holds blocks of another kind: format 3 there, format 2 here; give these a place of their own, or empty that one");

    let former = tempfile::tempdir().unwrap();
    std::fs::write(former.path().join("index.redb"), "").unwrap();
    let former = DiskConfig::new(former.path(), config().layout, "test model, f16", 1 << 20);
    assert_snapshot!(refused(former), @"disk tier holds blocks of another kind: format 1 (index.redb) there alone; format 2, 3 shards of 40 bytes, test model, f16 here alone; give these a place of their own, or empty that one");
}

#[test]
fn an_index_without_a_header_is_set_aside_and_its_blocks_are_kept() {
    type Damage = fn(&mut Vec<u8>);
    let damages: [(Damage, &str); 4] = [
        (|bytes| bytes[3] ^= 1, "begins with no header"),
        (|bytes| bytes[60] ^= 1, "has a damaged header"),
        (|bytes| bytes[16..20].fill(0xff), "begins with no header"),
        (|bytes| bytes[..RECORDS].fill(0), "begins with no header"),
    ];
    for (damage, expected) in damages {
        let directory = filled(5);
        change(directory.path(), damage);
        let tier = DiskTier::open(config(directory.path(), 8)).unwrap();
        let warnings = tier.take_warnings();
        let [TierWarning::IndexRebuilt { reason, blocks: 5, .. }] = &warnings[..] else {
            panic!("{warnings:?}");
        };
        assert_eq!(*reason, expected);
        assert!(
            warnings[0].to_string().contains("blocks.index.damaged, a new one names 5 blocks"),
            "{}",
            warnings[0]
        );
        assert!(directory.path().join("blocks.index.damaged").exists());
        assert_eq!(held(&tier, 8), [0, 1, 2, 3, 4]);
        drop(tier);
        let tier = DiskTier::open(config(directory.path(), 8)).unwrap();
        assert_eq!((held(&tier, 8).len(), tier.take_warnings()), (5, vec![]));
    }
    // A file of something else, and an empty one.
    for text in [&b"not an index"[..], b""] {
        let directory = filled(5);
        std::fs::write(index(directory.path()), text).unwrap();
        let tier = DiskTier::open(config(directory.path(), 8)).unwrap();
        let warnings = tier.take_warnings();
        assert!(matches!(warnings[..], [TierWarning::IndexRebuilt { blocks: 0, .. }]), "{warnings:?}");
        assert_eq!(tier.write(key(1), &block(1)).unwrap(), Stored::Written);
        assert_eq!(held(&tier, 8), [1]);
    }
}

#[test]
fn a_damaged_record_costs_its_own_block() {
    let directory = filled(5);
    change(directory.path(), |bytes| {
        bytes[at(1)][40] ^= 8;
        bytes[at(6)][0] = 1;
    });
    let tier = DiskTier::open(config(directory.path(), 8)).unwrap();
    let warnings = tier.take_warnings();
    let told: Vec<String> = warnings.iter().map(ToString::to_string).collect();
    assert_eq!(told, ["disk tier: 2 records of the index are damaged, their blocks are lost"]);
    assert_eq!(held(&tier, 8), [0, 2, 3, 4]);
    (5..9).for_each(|n| assert_eq!(tier.write(key(n), &block(n)).unwrap(), Stored::Written));
    drop(tier);
    let tier = DiskTier::open(config(directory.path(), 8)).unwrap();
    assert_eq!((held(&tier, 12), tier.take_warnings()), (vec![0, 2, 3, 4, 5, 6, 7, 8], vec![]));
}

/// Records that somebody changed and sealed again: no block is served for another one.
#[test]
fn records_of_other_blocks_serve_nothing() {
    let exchanged = |seal: bool| {
        let directory = filled(3);
        change(directory.path(), |bytes| {
            let [zero, one] = [0, 1].map(|slot| bytes[at(slot)].to_vec());
            let [zero, one] = if seal { [sealed(1, &zero), sealed(0, &one)] } else { [zero, one] };
            bytes[at(1)].copy_from_slice(&zero);
            bytes[at(0)].copy_from_slice(&one);
        });
        directory
    };
    let directory = exchanged(false);
    let tier = DiskTier::open(config(directory.path(), 8)).unwrap();
    assert_eq!(held(&tier, 3), [2], "a record belongs to its slot");
    let directory = exchanged(true);
    let tier = DiskTier::open(config(directory.path(), 8)).unwrap();
    for n in [0, 1] {
        let error = tier.read_block(key(n), &mut block(9)).unwrap_err();
        assert!(matches!(error, TierError::Corrupt { shard: 0, .. }), "{error}");
    }
    // The hash of another block in a record whose checksums are right.
    let directory = filled(3);
    change(directory.path(), |bytes| {
        let mut record = bytes[at(0)].to_vec();
        record[..32].copy_from_slice(key(7).as_bytes());
        bytes[at(0)].copy_from_slice(&sealed(0, &record));
    });
    let tier = DiskTier::open(config(directory.path(), 8)).unwrap();
    let error = tier.read(key(7), 0, &mut [0; 40]).unwrap_err();
    assert!(matches!(error, TierError::Corrupt { shard: 0, .. }), "{error}");
    assert_eq!(held(&tier, 8), [1, 2]);
}

#[test]
fn a_block_that_two_records_name_is_where_it_was_written_last() {
    let directory = filled(3);
    change(directory.path(), |bytes| {
        // An older record of block 2 in slot 0, with another order of writing.
        let mut record = bytes[at(2)].to_vec();
        record[32..40].copy_from_slice(&0_u64.to_le_bytes());
        bytes[at(0)].copy_from_slice(&sealed(0, &record));
    });
    let tier = DiskTier::open(config(directory.path(), 8)).unwrap();
    assert_eq!(held(&tier, 3), [1, 2]);
    (10..16).for_each(|n| assert_eq!(tier.write(key(n), &block(n)).unwrap(), Stored::Written));
    drop(tier);
    assert_eq!(held(&DiskTier::open(config(directory.path(), 8)).unwrap(), 16).len(), 8);
}

#[derive(Clone, Debug)]
enum Damage {
    Bytes(Vec<(u16, u8)>),
    Zeros(u16, u16),
    Noise(u16, u16, u8),
    Cut(u16),
    Longer(u16),
    Swap(u8, u8),
}

fn damage() -> impl Strategy<Value = Damage> {
    prop_oneof![
        prop::collection::vec((0u16..5000, 1u8..), 1..20).prop_map(Damage::Bytes),
        (0u16..5000, 1u16..2000).prop_map(|(start, len)| Damage::Zeros(start, len)),
        (0u16..5000, 1u16..2000, any::<u8>()).prop_map(|(start, len, seed)| Damage::Noise(start, len, seed)),
        (0u16..5000).prop_map(Damage::Cut),
        (1u16..5000).prop_map(Damage::Longer),
        (0u8..8, 0u8..8).prop_map(|(a, b)| Damage::Swap(a, b)),
    ]
}

impl Damage {
    fn apply(&self, bytes: &mut Vec<u8>) {
        let len = bytes.len();
        let range = |start: u16, count: u16| usize::from(start).min(len)..usize::from(start + count).min(len);
        match self {
            Self::Bytes(flips) => {
                let inside = flips.iter().filter(|(at, _)| usize::from(*at) < len);
                inside.for_each(|(at, with)| bytes[usize::from(*at)] ^= with);
            }
            Self::Zeros(start, count) => bytes[range(*start, *count)].fill(0),
            Self::Noise(start, count, seed) => {
                let noise = (0u32..).map(|i| (i.wrapping_mul(0x9e37_79b9) >> 24) as u8 ^ seed);
                bytes[range(*start, *count)].iter_mut().zip(noise).for_each(|(byte, noise)| *byte = noise);
            }
            Self::Cut(at) => bytes.truncate(usize::from(*at)),
            Self::Longer(by) => bytes.resize(len + usize::from(*by), 0x5a),
            Self::Swap(a, b) => {
                let [a, b] = [*a, *b].map(|slot| at(slot.into()));
                if a.end.max(b.end) <= len {
                    let (first, second) = (bytes[a.clone()].to_vec(), bytes[b.clone()].to_vec());
                    bytes[a].copy_from_slice(&second);
                    bytes[b].copy_from_slice(&first);
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(cases(150))]
    /// The index is a cache: whatever becomes of it, the tier opens, serves right blocks or none, and fills again.
    #[test]
    fn an_index_with_any_damage_opens(damages in prop::collection::vec(damage(), 1..4)) {
        let directory = filled(6);
        change(directory.path(), |bytes| damages.iter().for_each(|damage| damage.apply(bytes)));
        let before = std::fs::read(index(directory.path())).unwrap();
        let tier = DiskTier::open(config(directory.path(), 8)).unwrap();
        let there = held(&tier, 8);
        let warnings = tier.take_warnings();
        let unchanged = before[..4096.min(before.len())].starts_with(&header(ABOUT));
        prop_assert!(unchanged || matches!(warnings[..], [TierWarning::IndexRebuilt { .. }]), "{:?}", warnings);
        // An entry of zeros, or behind the end, is one that was never used: no damage that a tier could tell.
        let unused = |entry: Option<&[u8]>| entry.is_none_or(|entry| entry.iter().all(|byte| *byte == 0));
        let lost = (0..6).any(|slot| unused(before.get(at(slot))));
        prop_assert!(there.len() == 6 || !warnings.is_empty() || lost, "{:?} {:?}", there, warnings);
        for n in 20..30 {
            prop_assert_eq!(tier.write(key(n), &block(n)).unwrap(), Stored::Written);
        }
        let there = held(&tier, 30);
        prop_assert_eq!(there.len(), 8);
        drop(tier);
        let tier = DiskTier::open(config(directory.path(), 8)).unwrap();
        prop_assert_eq!(held(&tier, 30), there);
    }
}

#[test]
fn tidy_arithmetic_of_this_file() {
    let directory = filled(8);
    let bytes = std::fs::read(index(directory.path())).unwrap();
    assert_eq!(bytes.len(), at(7).end);
    assert!(bytes.starts_with(&header(ABOUT)));
    (0..8).for_each(|slot| assert_eq!(bytes[at(slot)], sealed(slot, &bytes[at(slot)])));
    let _ = layout();
}
