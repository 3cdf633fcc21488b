//! The host tier, and stacks of tiers.

use std::sync::Arc;
use std::time::Duration;

use insta::assert_snapshot;
use prefetch::policy::{PolicyKind, ReuseFilter};
use prefetch::stack::{StackError, TierStack};
use prefetch::tier::{BlockLayout, FakeTier, Fault, HostTier, Stored, Tier, TierError, TierKind};
use proptest::prelude::*;

use crate::conformance::{block, check_ops, check_refusals, check_threads, key, layout, ops};

fn host(capacity: u32, policy: PolicyKind) -> HostTier {
    HostTier::new(layout(), capacity, policy, None)
}

proptest! {
    #[test]
    fn the_host_tier_keeps_the_rules(
        ops in ops(), capacity in 1u32..12, policy in prop::sample::select(&[PolicyKind::Lru, PolicyKind::Arc]),
    ) {
        check_ops(&host(capacity, policy), &ops)?;
    }
}

#[test]
fn the_host_tier_refuses_what_does_not_fit_and_serves_threads() {
    check_refusals(&host(4, PolicyKind::Lru));
    check_threads(&host(8, PolicyKind::Arc));
}

#[test]
fn a_filtered_block_is_stored_on_its_second_request() {
    let tier = HostTier::new(layout(), 4, PolicyKind::Lru, Some(ReuseFilter::new(2, 100)));
    for expected in [Stored::Filtered, Stored::Written, Stored::AlreadyThere] {
        let _ = tier.contains(key(1)).unwrap();
        assert_eq!(tier.write(key(1), &block(1)).unwrap(), expected);
    }
}

fn fake(kind: TierKind) -> Arc<FakeTier> {
    Arc::new(FakeTier::new(kind, layout(), Duration::ZERO))
}

#[test]
fn a_load_climbs_to_the_faster_tiers_and_is_counted_where_it_came_from() {
    let (host, disk, remote) =
        (Arc::new(host(4, PolicyKind::Lru)), fake(TierKind::Disk), fake(TierKind::Remote));
    disk.fail(key(1), Fault::Missing);
    let stack = TierStack::new(vec![host, disk.clone(), remote]).unwrap();
    let mut bytes = block(9);
    assert_eq!(stack.load(key(1), &mut bytes).unwrap(), TierKind::Remote);
    assert_eq!(bytes, block(1));
    assert_eq!(stack.load(key(1), &mut bytes).unwrap(), TierKind::Host);
    assert_eq!(disk.reads(), [key(1)]);
    let row = |kind| {
        let c = stack.counters().tier(kind);
        format!(
            "{kind}: {}+{} {} read {} written {}\n",
            c.hits, c.misses, c.errors, c.bytes_read, c.bytes_written
        )
    };
    assert_snapshot!(TierKind::ALL.map(row).concat(), @r"
    host: 1+1 0 read 120 written 120
    disk: 0+1 0 read 0 written 120
    remote: 1+0 0 read 120 written 0
    ");
}

#[test]
fn a_broken_tier_costs_time_and_never_the_answer() {
    let (disk, remote) = (fake(TierKind::Disk), fake(TierKind::Remote));
    let stack = TierStack::new(vec![disk.clone(), remote.clone()]).unwrap();
    let mut bytes = block(9);
    disk.fail(key(1), Fault::Broken);
    assert_eq!(stack.load_shard(key(1), 2, &mut bytes[..40]).unwrap(), TierKind::Remote);
    assert_eq!(bytes[..40], block(1)[80..]);
    assert_eq!(stack.counters().tier(TierKind::Disk).errors, 1);
    // The error of the tier that has the block outlives the absence in the other.
    remote.fail(key(1), Fault::Missing);
    assert!(matches!(stack.load(key(1), &mut bytes), Err(TierError::Backend { .. })));
    disk.fail(key(1), Fault::Missing);
    let absent = stack.load(key(1), &mut bytes).unwrap_err();
    assert!(matches!(absent, TierError::NotFound { tier: TierKind::Remote, .. }));
    assert_eq!(stack.store(key(1), &block(1)).unwrap(), [TierKind::Disk, TierKind::Remote]);
    assert!(stack.remove(key(1)).unwrap() && stack.lookup(key(1)).is_none());
}

#[test]
fn stacks_that_make_no_sense_are_refused() {
    let build = |tiers: Vec<Arc<dyn Tier>>| TierStack::new(tiers).err();
    assert_eq!(build(vec![]), Some(StackError::Empty));
    let order = build(vec![fake(TierKind::Remote), fake(TierKind::Disk)]);
    assert_eq!(order, Some(StackError::Order { upper: TierKind::Remote, lower: TierKind::Disk }));
    let other = BlockLayout::new(1, 120).unwrap();
    let odd = Arc::new(FakeTier::new(TierKind::Disk, other, Duration::ZERO));
    let mixed = build(vec![Arc::new(host(1, PolicyKind::Lru)), odd]);
    assert_eq!(mixed, Some(StackError::Layout { tier: TierKind::Disk, found: other, expected: layout() }));
    assert_eq!(BlockLayout::new(1 << 20, 1 << 20), None);
}

#[test]
fn a_prefix_ends_at_its_first_gap_and_what_lies_behind_is_missed_by_all() {
    let (host, disk) = (Arc::new(host(4, PolicyKind::Lru)), fake(TierKind::Disk));
    host.write(key(40), &block(40)).unwrap();
    (41..100).chain([36]).for_each(|n| disk.fail(key(n), Fault::Missing));
    let stack = TierStack::new(vec![host, disk]).unwrap();
    let keys: Vec<_> = [40].into_iter().chain(0..40).map(key).collect();
    let found = stack.lookup_prefix(&keys);
    // Block 36 comes after block 40 and 36 others, in the second round of lookups.
    assert_eq!((found.len(), found[0], found[1]), (37, TierKind::Host, TierKind::Disk));
    assert_eq!(stack.lookup_prefix(&[key(50), key(1)]), []);
    stack.count_misses(4);
    let misses = TierKind::ALL.map(|kind| stack.counters().tier(kind).misses);
    assert_eq!(misses, [4, 4, 0]);
    stack.probe().unwrap();
}
