//! Media that fail: blocks that cannot be read, syncs that fail, and what a crash leaves.

use std::path::Path;
use std::sync::Arc;

use prefetch::stack::TierStack;
use prefetch::testing::{DiskFaults, SimVolume};
use prefetch::tier::{DiskTier, Stored, Tier, TierError, TierName};

use super::{PAGE, config, held};
use crate::conformance::{block, key, layout};

fn open(directory: &Path) -> DiskTier {
    DiskTier::open(config(directory, 8)).unwrap()
}

fn on(volume: &SimVolume, capacity: u64) -> DiskTier {
    DiskTier::on(Arc::new(volume.clone()), config(Path::new("simulated"), capacity)).unwrap()
}

fn write_all(tier: &DiskTier, blocks: std::ops::Range<u16>) {
    blocks.for_each(|n| assert_eq!(tier.write(key(n), &block(n)).unwrap(), Stored::Written));
}

/// A slab that was cut or removed: every block that is gone costs one failure, and is then written again.
#[test]
fn blocks_that_cannot_be_read_leave_the_index_and_are_written_again() {
    for cut in [Some(PAGE * 2 + 50), Some(0), None] {
        let directory = tempfile::tempdir().unwrap();
        write_all(&open(directory.path()), 0..6);
        let slab = directory.path().join("slab-0000.kv");
        match cut {
            Some(len) => std::fs::OpenOptions::new().write(true).open(&slab).unwrap().set_len(len).unwrap(),
            None => std::fs::remove_file(&slab).unwrap(),
        }
        let gone = if cut == Some(PAGE * 2 + 50) { 2..6 } else { 0..6 };
        let tier = Arc::new(open(directory.path()));
        let stack = TierStack::new(vec![tier.clone() as Arc<dyn Tier>]).unwrap();
        for n in gone.clone() {
            assert!(tier.contains(key(n)).unwrap());
            let error = stack.load(key(n), &mut block(9)).unwrap_err();
            assert!(matches!(error, TierError::Backend { action: "reading a slab", .. }), "{error}");
            assert!(!tier.contains(key(n)).unwrap(), "block {n} could not be read");
            assert_eq!(stack.store(key(n), &block(n)).unwrap(), [TierName::DISK]);
        }
        let errors = stack.counters().tier(TierName::DISK).errors;
        assert_eq!(errors, u64::from(gone.end - gone.start));
        assert_eq!(held(&tier, 8), [0, 1, 2, 3, 4, 5]);
        drop((stack, tier));
        assert_eq!(held(&open(directory.path()), 8), [0, 1, 2, 3, 4, 5]);
    }
}

#[test]
fn a_block_on_a_bad_sector_is_dropped_and_one_beside_it_is_served() {
    let volume = SimVolume::new(1, 1 << 20);
    let tier = on(&volume, 8);
    write_all(&tier, 0..4);
    let faults = |read| {
        let mut faults = DiskFaults::default();
        faults.read = read;
        faults
    };
    volume.set_faults(faults(1000));
    assert!(tier.read(key(1), 0, &mut [0; 40]).is_err());
    volume.set_faults(faults(0));
    assert_eq!(held(&tier, 4), [0, 2, 3]);
}

/// Rule 2 of the disk tier: a slot is written only once no record names its last block. Here another thread removes a
/// block while the writer syncs the record of the one before.
#[test]
fn a_slot_that_is_freed_during_a_sync_waits_for_a_sync_of_its_own() {
    let volume = SimVolume::new(2, 1 << 20);
    let tier = Arc::new(on(&volume, 4));
    write_all(&tier, 0..4);
    tier.flush().unwrap();
    let weak = Arc::downgrade(&tier);
    volume.after_sync(move |file| {
        if let Some(tier) = weak.upgrade().filter(|_| file.starts_with("blocks.index")) {
            let _ = tier.remove(key(3));
        }
    });
    assert!(tier.remove(key(1)).unwrap());
    assert_eq!(tier.write(key(10), &block(10)).unwrap(), Stored::Written);
    // A kill: what was written is there, what was not synced as well.
    volume.kill();
    drop(tier);
    volume.restart(false);
    // No block is torn, so none is found to be corrupt.
    assert_eq!(held(&on(&volume, 4), 12), [0, 2]);
}

#[test]
fn a_sync_that_fails_says_how_many_blocks_are_not_durable_and_drops_them() {
    let volume = SimVolume::new(3, 1 << 20);
    let tier = Arc::new(on(&volume, 8));
    write_all(&tier, 0..2);
    tier.flush().unwrap();
    write_all(&tier, 2..5);
    let stack = TierStack::new(vec![tier.clone() as Arc<dyn Tier>]).unwrap();
    let mut faults = DiskFaults::default();
    faults.sync = 1000;
    volume.set_faults(faults);
    let error = stack.flush().unwrap_err();
    assert_eq!(error.to_string(), "disk tier: 3 written blocks would not survive a crash");
    assert_eq!(stack.counters().tier(TierName::DISK).errors, 1);
    volume.set_faults(DiskFaults::default());
    // The system may have dropped their bytes, though the next sync succeeds.
    assert_eq!(held(&tier, 8), [0, 1]);
    write_all(&tier, 2..5);
    tier.flush().unwrap();
    volume.kill();
    drop((tier, stack));
    volume.restart(true);
    assert_eq!(held(&on(&volume, 8), 8), [0, 1, 2, 3, 4]);
}

/// The room for the index is taken first, so that slabs cannot take it.
#[test]
fn what_is_written_to_a_nearly_full_disk_is_found_again() {
    for room in (4..80).map(|quarter| quarter * 1024) {
        let volume = SimVolume::new(room, room);
        let Ok(tier) = DiskTier::on(Arc::new(volume.clone()), config(Path::new("simulated"), 64)) else {
            assert!(room < 3 * 4096, "{room} bytes hold an index and a block");
            continue;
        };
        let slots = tier.capacity_blocks().unwrap();
        assert_eq!(slots < 64, !tier.take_warnings().is_empty(), "a smaller index is told of");
        let is_written = |n: &u16| matches!(tier.write(key(*n), &block(*n)), Ok(Stored::Written));
        let written: Vec<u16> = (0..20).filter(is_written).collect();
        assert!(!written.is_empty() || room < 3 * 4096, "{room}");
        tier.flush().unwrap();
        let there = held(&tier, 20);
        drop(tier);
        volume.restart(true);
        assert_eq!(held(&on(&volume, 64), 20), there, "{room} bytes");
    }
}

/// A slot is a page, an index of 8 slots a page and a part of one.
#[test]
fn a_disk_without_room_for_the_index_is_refused() {
    let volume = SimVolume::new(5, 4000);
    let refused = DiskTier::on(Arc::new(volume), config(Path::new("simulated"), 8)).err().unwrap();
    assert_eq!(refused.to_string(), "disk tier: taking room for the index failed");
    assert_eq!(layout().block_bytes(), 120);
}
