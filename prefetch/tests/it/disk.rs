//! The disk tier: the rules of all tiers, reopening, bad media, full disks, and `kill -9` at any moment.

#[cfg(unix)]
mod access;
#[cfg(unix)]
mod crash;
mod faults;
mod index;
#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod pwrite;
#[cfg(feature = "testing")]
mod spill;

use std::collections::BTreeSet;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::Path;
use std::sync::Arc;

use crate::conformance::{
    block, cases, check_changes, check_ops, check_refusals, check_threads, key, layout, ops,
};
use prefetch::changes::Changes;
use prefetch::policy::PolicyKind;
use prefetch::stack::TierStack;
use prefetch::tier::{DiskConfig, DiskTier, HostTier, Stored, Tier, TierError, TierName};
use proptest::prelude::*;

/// A slot is a page.
const PAGE: u64 = 4096;

fn config(directory: &Path, capacity_blocks: u64) -> DiskConfig {
    let mut config = DiskConfig::new(directory, layout(), "test model, f16", capacity_blocks * PAGE);
    config.blocks_per_sync = 4;
    config.direct = true;
    config
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
        let open = || {
            let mut config = config(directory.path(), capacity);
            (config.policy, config.direct) = (policy, direct);
            DiskTier::open(config).unwrap()
        };
        let tier = open();
        check_ops(&tier, &before)?;
        let there = held(&tier, 20);
        drop(tier);
        let tier = open();
        prop_assert_eq!(&held(&tier, 20), &there, "a closed tier reopens with what it had");
        (0..20).for_each(|n| assert_eq!(tier.remove(key(n)).unwrap(), there.contains(&n)));
        check_ops(&tier, &after)?;
    }

    #[test]
    fn the_changes_of_the_disk_tier_are_all_it_holds(before in ops(), after in ops(), capacity in 1u64..12) {
        let directory = tempfile::tempdir().unwrap();
        let changes = Changes::default();
        let open = || DiskTier::open(config(directory.path(), capacity).changes(changes.clone())).unwrap();
        let held = check_changes(&open(), &changes, &BTreeSet::new(), &before)?;
        check_changes(&open(), &changes, &held, &after)?;
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
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn a_disk_that_is_full_at_any_byte_keeps_what_fits_and_is_used_again_once_there_is_room() {
    proptest!(cases(24), |(room in 0u64..6_000, before in 0u16..12)| {
        let directory = tempfile::tempdir().unwrap();
        pwrite::ROOM.set(u64::MAX);
        let tier = DiskTier::open(config(directory.path(), 12)).unwrap();
        (0..before).for_each(|n| assert_eq!(tier.write(key(n), &block(n)).unwrap(), Stored::Written));
        pwrite::ROOM.set(room);
        let full = |error: TierError| matches!(error, TierError::Backend { .. });
        let failures = (20..60).filter(|&n| tier.write(key(n), &block(n)).is_err_and(full)).count();
        // With room for everything, or nothing, or part of it.
        prop_assert!(room >= 40 * 120 || failures > 0, "{} failures", failures);
        let there = held(&tier, 60);
        prop_assert!(there.len() <= 12);
        // The index took its room when it was made.
        tier.flush().unwrap();
        drop(tier);
        let tier = DiskTier::open(config(directory.path(), 12)).unwrap();
        prop_assert_eq!(held(&tier, 60), there, "what was reported as written is there");
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
    let mut huge = config(directory.path(), 1);
    huge.capacity_bytes = 1 << 60;
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
