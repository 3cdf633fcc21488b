//! The host tier, and stacks of tiers.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use insta::assert_snapshot;
use kvblock::BlockHash;
use prefetch::assemble::StackConfig;
use prefetch::changes::Changes;
use prefetch::policy::{PolicyKind, ReuseFilter};
use prefetch::spec::TierSpec;
use prefetch::stack::{StackError, TierStack};
use prefetch::testing::{FakeTier, Fault};
use prefetch::tier::{BlockLayout, HostTier, Stored, Tier, TierError, TierName};
use proptest::prelude::*;

use crate::conformance::{block, check_changes, check_ops, check_refusals, check_threads, key, layout, ops};

fn host(capacity: u32, policy: PolicyKind) -> HostTier {
    HostTier::new(layout(), capacity, policy, None)
}

fn policies() -> impl Strategy<Value = PolicyKind> {
    prop::sample::select(&[PolicyKind::Lru, PolicyKind::Arc])
}

/// Does what a queue says; no block comes twice, and none goes that was not there.
fn follow(held: &mut BTreeSet<BlockHash>, changes: &Changes) {
    for change in changes.take() {
        let done = if change.held { held.insert(change.key) } else { held.remove(&change.key) };
        assert!(done, "{change:?}");
    }
}

proptest! {
    #[test]
    fn the_host_tier_keeps_the_rules(ops in ops(), capacity in 1u32..12, policy in policies()) {
        check_ops(&host(capacity, policy), &ops)?;
    }

    /// A queue that begins late is told of what is there, and one that nobody reads any more does no harm.
    #[test]
    fn whoever_follows_the_host_tier_knows_what_it_holds(
        before in ops(), after in ops(), capacity in 1u32..12, policy in policies(),
    ) {
        let tier = host(capacity, policy);
        let [early, late] = [(); 2].map(|()| Changes::default());
        tier.follow(&early);
        tier.follow(&Changes::default());
        let held = check_changes(&tier, &early, &BTreeSet::new(), &before)?;
        tier.follow(&late);
        let now = check_changes(&tier, &late, &held, &after)?;
        let mut known = held.into_iter().map(key).collect();
        follow(&mut known, &early);
        prop_assert_eq!(known, now.into_iter().map(key).collect());
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

const ALL: [TierName; 3] = [TierName::HOST, TierName::DISK, TierName::REMOTE];

fn fake(name: TierName) -> Arc<FakeTier> {
    Arc::new(FakeTier::new(name, layout(), Duration::ZERO))
}

#[test]
fn a_load_climbs_to_the_faster_tiers_and_is_counted_where_it_came_from() {
    let (host, disk, remote) =
        (Arc::new(host(4, PolicyKind::Lru)), fake(TierName::DISK), fake(TierName::REMOTE));
    disk.fail(key(1), Fault::Missing);
    let stack = TierStack::new(vec![host, disk.clone(), remote]).unwrap();
    let mut bytes = block(9);
    assert_eq!(stack.load(key(1), &mut bytes).unwrap(), TierName::REMOTE);
    assert_eq!(bytes, block(1));
    assert_eq!(stack.load(key(1), &mut bytes).unwrap(), TierName::HOST);
    assert_eq!(disk.reads(), [key(1)]);
    let row = |name| {
        let c = stack.counters().tier(name);
        format!(
            "{name}: {}+{} {} read {} written {}\n",
            c.hits, c.misses, c.errors, c.bytes_read, c.bytes_written
        )
    };
    assert_snapshot!(ALL.map(row).concat(), @r"
    host: 1+1 0 read 120 written 120
    disk: 0+1 0 read 0 written 120
    remote: 1+0 0 read 120 written 0
    ");
}

/// Two engines save and load through one host tier, each on a thread, while others begin to follow it.
#[test]
fn stacks_that_share_a_host_tier_get_the_right_bytes_or_a_miss() {
    const ROUNDS: u16 = 3000;
    let spec: TierSpec = "host=960B".parse().unwrap();
    let config = StackConfig::new(layout(), "test");
    let host = Arc::new(spec.host(&config).unwrap().unwrap());
    let capacity = usize::try_from(host.capacity_blocks().unwrap()).unwrap();
    assert_eq!(capacity, 8);
    let open = || {
        let changes = Changes::default();
        let stack = spec.build_below(Some(host.clone()), &config.clone().changes(changes.clone())).unwrap();
        (stack, changes, BTreeSet::new())
    };
    let mut engines = [open(), open()];
    let mut late = Vec::new();
    std::thread::scope(|scope| {
        for (seed, (stack, changes, known)) in (0u32..).zip(&mut engines) {
            scope.spawn(move || {
                let mut bytes = block(0);
                let (mut hits, mut misses, mut state) = (0, 0, seed);
                for round in 0..ROUNDS {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    let n = u16::try_from(state >> 16).unwrap() % 24;
                    match round % 8 {
                        0..3 => drop(stack.store(key(n), &block(n)).unwrap()),
                        3 => drop(stack.remove(key(n)).unwrap()),
                        4 => drop(stack.lookup(key(n))),
                        _ => match stack.load(key(n), &mut bytes) {
                            Ok(tier) => {
                                assert_eq!((tier, &bytes), (TierName::HOST, &block(n)));
                                hits += 1;
                            }
                            Err(TierError::NotFound { .. }) => misses += 1,
                            Err(error) => panic!("{error}"),
                        },
                    }
                    follow(known, changes);
                }
                let counted = stack.counters().tier(TierName::HOST);
                assert_eq!((counted.hits, counted.misses, counted.errors), (hits, misses, 0));
                assert!(hits > 0 && misses > 0, "{hits} hits, {misses} misses");
            });
        }
        late.extend((0..20).map(|_| open()));
    });
    let held: BTreeSet<BlockHash> = (0..24).map(key).filter(|key| host.contains(*key).unwrap()).collect();
    assert!(held.len() <= capacity, "{} blocks", held.len());
    for (_, changes, known) in engines.iter_mut().chain(&mut late) {
        follow(known, changes);
        assert_eq!(*known, held);
    }
    // One ends, and the other goes on.
    let [ended, (stack, ..)] = engines;
    drop((ended, late));
    stack.store(key(30), &block(30)).unwrap();
    assert_eq!(stack.load(key(30), &mut block(0)).unwrap(), TierName::HOST);
}

#[test]
fn a_host_tier_of_other_blocks_is_refused() {
    let spec: TierSpec = "host=960B".parse().unwrap();
    let config = StackConfig::new(BlockLayout::new(1, 120).unwrap(), "test");
    let refused = spec.build_below(Some(Arc::new(host(1, PolicyKind::Lru))), &config).unwrap_err();
    assert_snapshot!(refused, @"the host tier holds BlockLayout { shards: 3, shard_bytes: 40 }, the stack BlockLayout { shards: 1, shard_bytes: 120 }");
}

#[test]
fn a_broken_tier_costs_time_and_never_the_answer() {
    let (disk, remote) = (fake(TierName::DISK), fake(TierName::REMOTE));
    let stack = TierStack::new(vec![disk.clone(), remote.clone()]).unwrap();
    let mut bytes = block(9);
    disk.fail(key(1), Fault::Broken);
    assert_eq!(stack.load(key(1), &mut bytes).unwrap(), TierName::REMOTE);
    assert_eq!(bytes, block(1));
    assert_eq!(stack.counters().tier(TierName::DISK).errors, 1);
    disk.fail(key(1), Fault::Broken);
    // The error of the tier that has the block outlives the absence in the other.
    remote.fail(key(1), Fault::Missing);
    assert!(matches!(stack.load(key(1), &mut bytes), Err(TierError::Backend { .. })));
    disk.fail(key(1), Fault::Missing);
    let absent = stack.load(key(1), &mut bytes).unwrap_err();
    assert!(matches!(absent, TierError::NotFound { tier: TierName::REMOTE, .. }));
    assert_eq!(stack.store(key(1), &block(1)).unwrap(), [TierName::DISK, TierName::REMOTE]);
    assert!(stack.remove(key(1)).unwrap() && stack.lookup(key(1)).is_none());
}

#[test]
fn a_tier_that_panics_is_counted_and_the_next_one_serves() {
    let (disk, remote) = (fake(TierName::DISK), fake(TierName::REMOTE));
    let stack = TierStack::new(vec![disk.clone(), remote.clone()]).unwrap();
    disk.fail(key(1), Fault::Panics);
    let mut bytes = block(9);
    assert_eq!(stack.load(key(1), &mut bytes).unwrap(), TierName::REMOTE);
    assert_eq!(bytes, block(1));
    let count = |name| (stack.counters().tier(name).misses, stack.counters().tier(name).errors);
    assert_eq!((count(TierName::DISK), count(TierName::REMOTE)), ((1, 1), (0, 0)));
    disk.fail(key(2), Fault::Panics);
    remote.fail(key(2), Fault::Panics);
    assert!(matches!(stack.load(key(2), &mut bytes), Err(TierError::Panicked { .. })));
    assert_eq!((count(TierName::DISK), count(TierName::REMOTE)), ((2, 2), (1, 1)));
}

/// A fast and a slow disk, and a tier of one's own between them.
#[test]
fn a_stack_takes_several_tiers_of_a_kind_in_any_order() {
    let names = ["nvme", "compressed memory", "hard disk"].map(TierName::new);
    let tiers = names.map(fake);
    tiers[0].fail(key(1), Fault::Missing);
    tiers[1].fail(key(1), Fault::Missing);
    let stack = TierStack::new(tiers.into_iter().map(|tier| tier as Arc<dyn Tier>).collect()).unwrap();
    assert_eq!(stack.load(key(1), &mut block(9)).unwrap(), names[2]);
    let written = names.map(|name| stack.counters().tier(name).bytes_written);
    assert_eq!(written, [120, 120, 0], "the block climbed to the faster tiers");
    assert_eq!(stack.counters().tier(TierName::HOST), Default::default());
}

#[test]
fn stacks_that_make_no_sense_are_refused() {
    let build = |tiers: Vec<Arc<dyn Tier>>| TierStack::new(tiers).err();
    assert_eq!(build(vec![]), Some(StackError::Empty));
    let twice = build(vec![fake(TierName::DISK), fake(TierName::REMOTE), fake(TierName::DISK)]);
    assert_eq!(twice, Some(StackError::SameName { tier: TierName::DISK }));
    let other = BlockLayout::new(1, 120).unwrap();
    let odd = Arc::new(FakeTier::new(TierName::DISK, other, Duration::ZERO));
    let mixed = build(vec![Arc::new(host(1, PolicyKind::Lru)), odd]);
    assert_eq!(mixed, Some(StackError::Layout { tier: TierName::DISK, found: other, expected: layout() }));
    assert_eq!(BlockLayout::new(1 << 20, 1 << 20), None);
}

#[test]
fn a_prefix_ends_at_its_first_gap_and_what_lies_behind_is_missed_by_all() {
    let (host, disk) = (Arc::new(host(4, PolicyKind::Lru)), fake(TierName::DISK));
    host.write(key(40), &block(40)).unwrap();
    (41..100).chain([36]).for_each(|n| disk.fail(key(n), Fault::Missing));
    let stack = TierStack::new(vec![host, disk]).unwrap();
    let keys: Vec<_> = [40].into_iter().chain(0..40).map(key).collect();
    let found = stack.lookup_prefix(&keys);
    // Block 36 comes after block 40 and 36 others, in the second round of lookups.
    assert_eq!((found.len(), found[0], found[1]), (37, TierName::HOST, TierName::DISK));
    assert_eq!(stack.lookup_prefix(&[key(50), key(1)]), []);
    stack.count_misses(4);
    let misses = ALL.map(|name| stack.counters().tier(name).misses);
    assert_eq!(misses, [4, 4, 0]);
    stack.probe().unwrap();
}
