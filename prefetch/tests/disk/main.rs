//! The disk tier: the rules of all tiers, reopening, bad media, full disks, and `kill -9` at any moment.
#![cfg(all(feature = "disk", not(loom)))]

#[path = "../conformance/mod.rs"]
mod conformance;
#[cfg(unix)]
mod crash;
#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod pwrite;

use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::Path;
use std::sync::Arc;

use conformance::{block, cases, check_ops, check_refusals, check_threads, key, layout, ops};
use insta::assert_snapshot;
use prefetch::policy::PolicyKind;
use prefetch::stack::TierStack;
use prefetch::tier::{BlockLayout, DiskConfig, DiskTier, HostTier, Stored, Tier, TierError, TierName};
use proptest::prelude::*;

/// A slot is a page.
const PAGE: u64 = 4096;

fn config(directory: &Path, capacity_blocks: u64) -> DiskConfig {
    DiskConfig {
        directory: directory.to_owned(),
        layout: layout(),
        namespace: "test model, f16".into(),
        capacity_bytes: capacity_blocks * PAGE,
        policy: PolicyKind::Lru,
        reuse: None,
        blocks_per_sync: 4,
        direct: true,
    }
}

fn held(tier: &DiskTier, blocks: u16) -> Vec<u16> {
    let mut bytes = vec![0; layout().block_bytes()];
    let found = (0..blocks).filter(|&n| match tier.read_block(key(n), &mut bytes) {
        Ok(()) => {
            assert_eq!(bytes, block(n), "block {n}");
            true
        }
        Err(TierError::NotFound { .. }) => false,
        Err(error) => panic!("block {n}: {error}"),
    });
    found.collect()
}

proptest! {
    #![proptest_config(cases(24))]
    #[test]
    fn the_disk_tier_keeps_the_rules(
        before in ops(), after in ops(),
        capacity in 1u64..12, policy in prop::sample::select(&[PolicyKind::Lru, PolicyKind::Arc]), direct: bool,
    ) {
        let directory = tempfile::tempdir().unwrap();
        let open = || DiskTier::open(DiskConfig { policy, direct, ..config(directory.path(), capacity) }).unwrap();
        let tier = open();
        check_ops(&tier, &before)?;
        let there = held(&tier, 20);
        drop(tier);
        let tier = open();
        prop_assert_eq!(&held(&tier, 20), &there, "a closed tier reopens with what it had");
        (0..20).for_each(|n| assert_eq!(tier.remove(key(n)).unwrap(), there.contains(&n)));
        check_ops(&tier, &after)?;
    }
}

#[test]
fn the_disk_tier_refuses_what_does_not_fit_and_serves_threads() {
    let directory = tempfile::tempdir().unwrap();
    let tier = DiskTier::open(config(directory.path(), 8)).unwrap();
    check_refusals(&tier);
    check_threads(&tier);
}

#[test]
fn a_directory_is_held_by_one_tier() {
    let directory = tempfile::tempdir().unwrap();
    let tier = DiskTier::open(config(directory.path(), 8)).unwrap();
    let refused = DiskTier::open(config(directory.path(), 8)).err().unwrap();
    assert!(matches!(&refused, TierError::Locked { path, .. } if path == directory.path()), "{refused}");
    assert!(refused.to_string().ends_with(" is already open, by this or another process"), "{refused}");
    drop(tier);
    assert!(matches!(DiskTier::open(config(directory.path(), 0)).err(), Some(TierError::Full { .. })));
}

#[test]
fn a_store_of_something_else_is_refused_by_its_header() {
    let directory = tempfile::tempdir().unwrap();
    let config = || config(directory.path(), 8);
    DiskTier::open(config()).unwrap().write(key(1), &block(1)).unwrap();
    let refused = |config| DiskTier::open(config).err().unwrap().to_string();
    let namespace = |namespace: &str| refused(DiskConfig { namespace: namespace.into(), ..config() });
    assert_snapshot!(namespace("other model, f16"), @"disk tier holds format 1, 3 shards of 40 bytes, test model, f16, not format 1, 3 shards of 40 bytes, other model, f16");
    assert_snapshot!(namespace("test model, f32"), @"disk tier holds format 1, 3 shards of 40 bytes, test model, f16, not format 1, 3 shards of 40 bytes, test model, f32");
    let layout =
        |shards, bytes| refused(DiskConfig { layout: BlockLayout::new(shards, bytes).unwrap(), ..config() });
    assert_snapshot!(layout(3, 80), @"disk tier holds format 1, 3 shards of 40 bytes, test model, f16, not format 1, 3 shards of 80 bytes, test model, f16");
    assert_snapshot!(layout(1, 120), @"disk tier holds format 1, 3 shards of 40 bytes, test model, f16, not format 1, 1 shards of 120 bytes, test model, f16");
    assert_eq!(held(&DiskTier::open(config()).unwrap(), 4), [1], "a refusal leaves the store as it was");

    // A version to come writes its own number there, and an index of another program has no such row.
    let about = |value: Option<&str>| {
        let index = redb::Database::open(directory.path().join("index.redb")).unwrap();
        let transaction = index.begin_write().unwrap();
        let mut table = transaction.open_table(redb::TableDefinition::<&str, &str>::new("about")).unwrap();
        match value {
            Some(value) => drop(table.insert("blocks", value).unwrap()),
            None => drop(table.remove("blocks").unwrap()),
        }
        drop(table);
        transaction.commit().unwrap();
    };
    about(Some("format 2, 3 shards of 40 bytes, test model, f16"));
    assert_snapshot!(refused(config()), @"disk tier holds format 2, 3 shards of 40 bytes, test model, f16, not format 1, 3 shards of 40 bytes, test model, f16");
    about(None);
    assert_snapshot!(refused(config()), @"disk tier holds blocks of unknown kind, not format 1, 3 shards of 40 bytes, test model, f16");
    std::fs::write(directory.path().join("index.redb"), "not an index").unwrap();
    assert_snapshot!(refused(config()), @"disk tier: opening the index failed");
}

#[test]
fn an_index_that_contradicts_itself_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let config = || config(directory.path(), 8);
    let tier = DiskTier::open(config()).unwrap();
    (1..3).for_each(|n| assert_eq!(tier.write(key(n), &block(n)).unwrap(), Stored::Written));
    drop(tier);
    // Changes the row of block 2, and tells what a tier that is opened then says.
    let refused = |slot: Option<u32>, sums: usize| {
        let index = redb::Database::open(directory.path().join("index.redb")).unwrap();
        let transaction = index.begin_write().unwrap();
        let rows = redb::TableDefinition::<[u8; 32], (u64, u32, &[u8])>::new("blocks");
        let mut table = transaction.open_table(rows).unwrap();
        let (stamp, its_slot, its_sums) = {
            let row = redb::ReadableTable::get(&table, key(2).as_bytes()).unwrap().unwrap();
            let (stamp, slot, sums) = row.value();
            (stamp, slot, sums.to_vec())
        };
        let row = (stamp, slot.unwrap_or(its_slot), &its_sums[..8 * sums]);
        table.insert(key(2).as_bytes(), row).unwrap();
        drop(table);
        transaction.commit().unwrap();
        drop(index);
        let error = DiskTier::open(config()).err().unwrap();
        // Put back.
        let index = redb::Database::open(directory.path().join("index.redb")).unwrap();
        let transaction = index.begin_write().unwrap();
        let row = (stamp, its_slot, &its_sums[..]);
        transaction.open_table(rows).unwrap().insert(key(2).as_bytes(), row).unwrap();
        transaction.commit().unwrap();
        format!("{error}: {}", std::error::Error::source(&error).unwrap())
    };
    // Block 1 is in slot 0.
    let twice = format!("slot 0 holds block {:?} and block {:?}", key(1), key(2));
    assert_eq!(refused(Some(0), 3), format!("disk tier: reading the index failed: {twice}"));
    let sums = format!("block {:?} has 2 checksums for 3 shards", key(2));
    assert_eq!(refused(None, 2), format!("disk tier: reading the index failed: {sums}"));
    assert_eq!(held(&DiskTier::open(config()).unwrap(), 4), [1, 2], "a refusal leaves the store as it was");
}

#[test]
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn a_disk_that_is_full_at_any_byte_keeps_what_fits_and_is_used_again_once_there_is_room() {
    proptest!(cases(24), |(room in 0u64..60_000, before in 0u16..12)| {
        let directory = tempfile::tempdir().unwrap();
        let tier = DiskTier::open(config(directory.path(), 12)).unwrap();
        (0..before).for_each(|n| assert_eq!(tier.write(key(n), &block(n)).unwrap(), Stored::Written));
        pwrite::ROOM.set(room);
        let full = |error: TierError| matches!(error, TierError::Backend { .. });
        let failures = (20..60).filter(|&n| tier.write(key(n), &block(n)).is_err_and(full)).count();
        // With room for everything, or nothing, or part of it.
        prop_assert!(room > 50_000 || failures > 0, "{} failures", failures);
        let there = held(&tier, 60);
        prop_assert!(there.len() <= 12);
        pwrite::ROOM.set(u64::MAX);
        (60..80).for_each(|n| assert_eq!(tier.write(key(n), &block(n)).unwrap(), Stored::Written));
        let there = held(&tier, 80);
        prop_assert_eq!(there.len(), 12);
        drop(tier);
        prop_assert_eq!(held(&DiskTier::open(config(directory.path(), 12)).unwrap(), 80), there);
    });
}

#[test]
fn a_tier_larger_than_its_file_system_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let huge = DiskConfig { capacity_bytes: 1 << 60, ..config(directory.path(), 1) };
    let refused = DiskTier::open(huge).err().unwrap();
    assert!(matches!(refused, TierError::TooLarge { capacity_bytes, .. } if capacity_bytes == 1 << 60));
    let said = refused.to_string();
    assert!(said.starts_with("disk tier of 1152921504606846976 bytes in "), "{said}");
}

#[test]
fn a_smaller_capacity_drops_the_blocks_beyond_it() {
    let directory = tempfile::tempdir().unwrap();
    let tier = DiskTier::open(config(directory.path(), 8)).unwrap();
    (0..8).for_each(|n| assert_eq!(tier.write(key(n), &block(n)).unwrap(), Stored::Written));
    drop(tier);
    let tier = DiskTier::open(config(directory.path(), 3)).unwrap();
    assert_eq!(held(&tier, 8), [0, 1, 2]);
    tier.write(key(9), &block(9)).unwrap();
    assert_eq!(held(&tier, 10), [1, 2, 9], "the oldest made room");
    drop(tier);
    let tier = DiskTier::open(config(directory.path(), 8)).unwrap();
    assert_eq!(held(&tier, 10), [1, 2, 9], "what was dropped stays away");
}

#[test]
fn a_flipped_bit_is_found_once_and_the_next_tier_serves() {
    let directory = tempfile::tempdir().unwrap();
    let disk = Arc::new(DiskTier::open(config(directory.path(), 8)).unwrap());
    (0..3).for_each(|n| assert_eq!(disk.write(key(n), &block(n)).unwrap(), Stored::Written));
    let slab = directory.path().join("slab-0000.kv");
    let mut file = std::fs::OpenOptions::new().read(true).write(true).open(slab).unwrap();
    let mut byte = [0];
    // Block 1 lies in slot 1; the byte belongs to its shard 2.
    file.seek(SeekFrom::Start(PAGE + 85)).unwrap();
    file.read_exact(&mut byte).unwrap();
    file.seek(SeekFrom::Current(-1)).unwrap();
    file.write_all(&[byte[0] ^ 0x10]).unwrap();

    let mut bytes = vec![0; layout().block_bytes()];
    disk.read(key(1), 0, &mut bytes[..40]).unwrap();
    let error = disk.read_block(key(1), &mut bytes).unwrap_err();
    assert!(matches!(error, TierError::Corrupt { shard: 2, .. }), "{error}");
    assert!(!disk.contains(key(1)).unwrap());
    let stack = TierStack::new(vec![
        Arc::new(HostTier::new(layout(), 4, PolicyKind::Lru, None)),
        disk.clone() as Arc<dyn Tier>,
    ]);
    assert_eq!(stack.unwrap().store(key(1), &block(1)).unwrap(), [TierName::HOST, TierName::DISK]);
    assert_eq!(held(&disk, 3), [0, 1, 2]);
}
