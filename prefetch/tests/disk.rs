//! The disk tier: the rules of all tiers, reopening, bad media, and `kill -9` at any moment.
#![cfg(all(feature = "disk", not(loom)))]

mod conformance;

use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use conformance::{block, cases, check_ops, check_refusals, check_threads, key, layout, ops};
use prefetch::policy::PolicyKind;
use prefetch::stack::TierStack;
use prefetch::tier::{DiskConfig, DiskTier, HostTier, Stored, Tier, TierError, TierKind};
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
        capacity in 1u64..12, policy in prop::sample::select(&[PolicyKind::Lru, PolicyKind::Arc]),
    ) {
        let directory = tempfile::tempdir().unwrap();
        let tier = DiskTier::open(DiskConfig { policy, ..config(directory.path(), capacity) }).unwrap();
        check_ops(&tier, &before)?;
        let there = held(&tier, 20);
        drop(tier);
        let tier = DiskTier::open(DiskConfig { policy, ..config(directory.path(), capacity) }).unwrap();
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
fn a_directory_is_held_by_one_tier_of_one_kind() {
    let directory = tempfile::tempdir().unwrap();
    let tier = DiskTier::open(config(directory.path(), 8)).unwrap();
    assert!(matches!(DiskTier::open(config(directory.path(), 8)).err(), Some(TierError::Backend { .. })));
    drop(tier);
    let other = DiskConfig { namespace: "another model".into(), ..config(directory.path(), 8) };
    let refused = DiskTier::open(other).err().unwrap();
    insta::assert_snapshot!(refused, @"disk tier holds format 1, 3 shards of 40 bytes, test model, f16, not format 1, 3 shards of 40 bytes, another model");
    assert!(matches!(DiskTier::open(config(directory.path(), 0)).err(), Some(TierError::Full { .. })));
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
    assert_eq!(stack.unwrap().store(key(1), &block(1)).unwrap(), [TierKind::Host, TierKind::Disk]);
    assert_eq!(held(&disk, 3), [0, 1, 2]);
}

/// The child of the crash test: writes and evicts until it is killed. Says when its first block is durable.
#[test]
fn crash_child() {
    let Ok(directory) = std::env::var("PREFETCH_CRASH_DIRECTORY") else { return };
    let tier = DiskTier::open(config(Path::new(&directory), 12)).unwrap();
    let seed = u16::try_from(std::process::id() % 64).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..2u16 {
            let (tier, running) = (&tier, Path::new(&directory).join("running"));
            scope.spawn(move || {
                for i in 0u16.. {
                    let n = (seed + thread * 17 + i * 5) % 64;
                    if tier.write(key(n), &block(n)).unwrap() == Stored::Written && i % 16 == 15 {
                        tier.remove(key((n + 30) % 64)).ok();
                    }
                    if i == 16 {
                        std::fs::write(&running, "").unwrap();
                    }
                }
            });
        }
    });
}

#[test]
#[cfg(unix)]
fn a_store_killed_at_any_moment_reopens_with_whole_blocks_only() {
    let directory = tempfile::tempdir().unwrap();
    let running = directory.path().join("running");
    let rounds: u64 = std::env::var("PREFETCH_CRASH_ROUNDS").map_or(12, |rounds| rounds.parse().unwrap());
    let mut survivors = 0;
    for round in 0..rounds {
        let _ = std::fs::remove_file(&running);
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["crash_child", "--exact"])
            .env("PREFETCH_CRASH_DIRECTORY", directory.path())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let begin = std::time::Instant::now();
        while !running.exists() {
            assert!(begin.elapsed() < Duration::from_secs(30), "the child does not write");
            assert!(child.try_wait().unwrap().is_none(), "the child ended by itself");
            std::thread::sleep(Duration::from_millis(1));
        }
        // Any moment: the rounds spread over the phases of writing, syncing and evicting.
        std::thread::sleep(Duration::from_micros(round * 7919 % 40_000));
        child.kill().unwrap();
        child.wait().unwrap();
        let tier = DiskTier::open(config(directory.path(), 12)).unwrap();
        survivors += held(&tier, 64).len();
        // And the reopened tier works: it can be filled through every slot.
        (100..112).for_each(|n| assert_eq!(tier.write(key(n), &block(n)).unwrap(), Stored::Written));
        assert_eq!(held(&tier, 112).len(), 12);
    }
    assert!(survivors as u64 > rounds, "{survivors} blocks survived {rounds} kills");
}
