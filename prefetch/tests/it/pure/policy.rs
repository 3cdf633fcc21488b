//! Eviction: LRU and ARC through the tier index, pins, and the reuse filter.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;

use insta::assert_snapshot;
use kvblock::BlockHash;
use prefetch::index::{IndexError, Lookup, RestoreError, TierIndex};
use prefetch::policy::{ArcPolicy, EvictionPolicy, PolicyKind, ReuseFilter};
use proptest::prelude::*;

use super::{hash, hashes};

fn store(index: &mut TierIndex, keys: &[BlockHash]) -> Option<Vec<BlockHash>> {
    let prepared = index.prepare_store(keys)?;
    let stored: Vec<_> = prepared.to_store.iter().map(|&(key, _)| key).collect();
    index.complete_store(&stored, true);
    Some(prepared.evicted.into_iter().map(|(key, _)| key).collect())
}

#[test]
fn lru_evicts_the_longest_unused_and_never_what_is_pinned_protected_or_in_flight() {
    let mut index = TierIndex::new(4, PolicyKind::Lru, None);
    assert_eq!(store(&mut index, &hashes(0..4)), Some(vec![]));
    index.touch(&hashes([0]));
    assert_eq!(index.prepare_load(&hashes([1])).unwrap().len(), 1);
    assert_eq!(
        store(&mut index, &hashes([2, 8])),
        Some(hashes([3])),
        "0 was used, 1 pinned, 2 asked for again"
    );

    let flying = index.prepare_store(&hashes([9])).unwrap();
    assert_eq!(flying.evicted[0].0, hash(2));
    assert_eq!((index.lookup(hash(9)), index.lookup(hash(2))), (Lookup::InFlight, Lookup::Missing));
    assert_eq!(index.prepare_store(&hashes([20, 21, 22])), None, "only 0 and 8 can go");
    assert_eq!(index.lookup(hash(0)), Lookup::Ready, "all or nothing");
    assert_eq!(index.remove(hash(1)), Err(IndexError::InUse { key: hash(1), pins: 1 }));

    index.complete_store(&hashes([9]), false);
    assert_eq!((index.lookup(hash(9)), index.free_slots()), (Lookup::Missing, 1));
    index.complete_load(&hashes([1]));
    assert!(index.remove(hash(1)).unwrap().is_some());
}

#[test]
fn an_index_is_restored_whole_or_not_at_all() {
    let mut index = TierIndex::new(4, PolicyKind::Lru, None);
    let (a, b) = (hash(1), hash(2));
    for (blocks, why) in [
        ([(a, 3), (b, 3)], RestoreError::SlotTwice { slot: 3, first: a, second: b }),
        ([(a, 3), (a, 1)], RestoreError::BlockTwice { key: a, first: 3, second: 1 }),
        ([(a, 3), (b, 4)], RestoreError::NoSuchSlot { key: b, slot: 4, capacity: 4 }),
    ] {
        assert_eq!(index.restore(&blocks), Err(why));
        assert_eq!((index.lookup(a), index.free_slots()), (Lookup::Missing, 4));
    }
    index.restore(&[(a, 3), (b, 1)]).unwrap();
    assert_eq!((index.lookup(a), index.free_slots()), (Lookup::Ready, 2));
    let evicted = index.prepare_store(&hashes([7, 8, 9])).unwrap().evicted;
    assert_eq!(evicted, [(a, 3)], "the first one is the oldest");
}

#[test]
fn touching_a_prefix_evicts_its_tail_first() {
    let mut index = TierIndex::new(4, PolicyKind::Lru, None);
    store(&mut index, &hashes(0..4));
    index.touch(&hashes(0..4));
    assert_eq!(store(&mut index, &hashes(10..12)), Some(hashes([3, 2])));
}

#[test]
fn the_reuse_filter_admits_from_the_second_request_and_forgets_the_oldest() {
    let mut index = TierIndex::new(4, PolicyKind::Lru, Some(ReuseFilter::new(2, 2)));
    let stored = |index: &mut TierIndex, n| index.prepare_store(&hashes([n])).unwrap().to_store.len();
    index.lookup(hash(1));
    assert_eq!(stored(&mut index, 1), 0);
    index.lookup(hash(1));
    assert_eq!(stored(&mut index, 1), 1);
    for n in [2, 3, 4, 2] {
        index.lookup(hash(n));
    }
    assert_eq!(stored(&mut index, 2), 0, "its first request was forgotten when 3 and 4 came");
}

#[test]
fn arc_keeps_what_is_used_twice_through_a_scan_and_lru_does_not() {
    let survivors = |kind| {
        let mut index = TierIndex::new(8, kind, None);
        store(&mut index, &hashes(0..4));
        index.touch(&hashes(0..4));
        for n in 100..140 {
            store(&mut index, &hashes([n]));
        }
        (0..4).filter(|&n| index.lookup(hash(n)) == Lookup::Ready).count()
    };
    assert_eq!((survivors(PolicyKind::Arc), survivors(PolicyKind::Lru)), (4, 0));
}

#[test]
fn arc_moves_its_target_by_the_ratio_of_the_ghost_lists() {
    let mut arc = ArcPolicy::new(4);
    let mut trace = String::new();
    let mut note = |arc: &ArcPolicy, what: &str| {
        let ([t1, t2, b1, b2], target) = arc.lengths();
        writeln!(trace, "{what:<18} T1 {t1}  T2 {t2}  B1 {b1}  B2 {b2}  target {target}").unwrap();
    };
    let evict = |arc: &mut ArcPolicy, n| {
        for key in arc.victims(n, &|_| true).unwrap() {
            arc.evict(key);
        }
    };
    for n in 0..4 {
        arc.insert(hash(n));
    }
    note(&arc, "insert 0..4");
    arc.touch(hash(0), true);
    arc.touch(hash(1), true);
    arc.touch(hash(2), false);
    note(&arc, "use 0, 1; 2 writes");
    evict(&mut arc, 3);
    note(&arc, "evict 3");
    arc.touch(hash(3), false);
    note(&arc, "ask for 3 (B1)");
    arc.insert(hash(3));
    note(&arc, "insert 3");
    arc.touch(hash(0), false);
    note(&arc, "ask for 0 (B2)");
    assert_snapshot!(trace, @r"
    insert 0..4        T1 4  T2 0  B1 0  B2 0  target 0
    use 0, 1; 2 writes T1 2  T2 2  B1 0  B2 0  target 0
    evict 3            T1 0  T2 1  B1 2  B2 1  target 0
    ask for 3 (B1)     T1 0  T2 1  B1 2  B2 1  target 1
    insert 3           T1 1  T2 1  B1 1  B2 1  target 1
    ask for 0 (B2)     T1 1  T2 1  B1 1  B2 1  target 0
    ");
}

#[derive(Clone, Debug)]
enum Op {
    Store(Vec<u8>, bool),
    Touch(u8),
    Pin(u8),
    Unpin(u8),
    Remove(u8),
}

fn op() -> impl Strategy<Value = Op> {
    let n = || 0u8..14;
    prop_oneof![
        4 => (prop::collection::vec(n(), 0..4), prop::bool::weighted(0.9)).prop_map(|(k, ok)| Op::Store(k, ok)),
        3 => n().prop_map(Op::Touch),
        2 => n().prop_map(Op::Pin),
        2 => n().prop_map(Op::Unpin),
        1 => n().prop_map(Op::Remove),
    ]
}

proptest! {
    /// For both policies: slots are never shared, pins and capacity hold, refusals change nothing.
    #[test]
    fn the_index_never_breaks_its_word(
        kind in prop::sample::select(&[PolicyKind::Lru, PolicyKind::Arc]),
        ops in prop::collection::vec(op(), 0..120),
    ) {
        const CAPACITY: u32 = 6;
        let mut index = TierIndex::new(CAPACITY, kind, None);
        let mut slots: HashMap<BlockHash, u32> = HashMap::new();
        let mut pins: HashMap<BlockHash, u32> = HashMap::new();
        for op in ops {
            match op {
                Op::Store(keys, ok) => {
                    let keys = hashes(keys);
                    let new: HashSet<_> = keys.iter().filter(|k| !slots.contains_key(k)).collect();
                    let stay = slots.keys().filter(|k| keys.contains(k) || pins.contains_key(k)).count();
                    let fits = new.len() + stay <= CAPACITY as usize;
                    let prepared = index.prepare_store(&keys);
                    prop_assert_eq!(prepared.is_some(), fits || new.is_empty());
                    let Some(prepared) = prepared else { continue };
                    for (key, slot) in prepared.evicted {
                        prop_assert!(!pins.contains_key(&key) && !keys.contains(&key));
                        prop_assert_eq!(slots.remove(&key), Some(slot));
                    }
                    let stored: Vec<_> = prepared.to_store.iter().map(|s| s.0).collect();
                    prop_assert_eq!(stored.iter().collect::<HashSet<_>>(), new);
                    index.complete_store(&stored, ok);
                    if ok {
                        slots.extend(prepared.to_store);
                    }
                    let used: HashSet<_> = slots.values().collect();
                    prop_assert_eq!(used.len(), slots.len(), "two blocks in one slot");
                }
                Op::Touch(n) => index.touch(&[hash(n)]),
                Op::Pin(n) => match index.prepare_load(&[hash(n)]) {
                    Ok(slot) => {
                        prop_assert_eq!(Some(&slot[0]), slots.get(&hash(n)));
                        *pins.entry(hash(n)).or_default() += 1;
                    }
                    Err(_) => prop_assert!(!slots.contains_key(&hash(n))),
                },
                Op::Unpin(n) => {
                    if let Some(count) = pins.get_mut(&hash(n)) {
                        index.complete_load(&[hash(n)]);
                        *count -= 1;
                        pins.retain(|_, count| *count > 0);
                    }
                }
                Op::Remove(n) => match index.remove(hash(n)) {
                    Ok(slot) => prop_assert_eq!(slot, slots.remove(&hash(n))),
                    Err(_) => prop_assert!(pins.contains_key(&hash(n))),
                },
            }
            prop_assert_eq!(index.free_slots() + slots.len(), CAPACITY as usize);
            prop_assert!((0..14).all(|n| (index.lookup(hash(n)) == Lookup::Ready) == slots.contains_key(&hash(n))));
        }
    }
}
