//! The store: shards in, blocks out, nothing visible before it is whole.

use std::sync::Arc;
use std::time::Duration;

use prefetch::policy::PolicyKind;
use prefetch::stack::TierStack;
use prefetch::store::{Store, StoreConfig, StoreError};
use prefetch::tier::{FakeTier, Fault, HostTier, TierError, TierName};
use proptest::prelude::*;

use crate::conformance::{block, cases, key, layout};

const SMALL: StoreConfig =
    StoreConfig { streams: 2, waiting_depth: 8, partial_max: 3, timeout: Duration::from_secs(30) };

fn store(config: StoreConfig) -> (Store, Arc<TierStack>) {
    let tier = HostTier::new(layout(), 64, PolicyKind::Lru, None);
    let stack = Arc::new(TierStack::new(vec![Arc::new(tier)]).unwrap());
    (Store::new(stack.clone(), config).unwrap(), stack)
}

fn shard(n: u16, shard: u32) -> Arc<[u8]> {
    block(n)[layout().shard_range(shard).unwrap()].into()
}

fn dump(store: &Store, blocks: &[u16], part: u32) -> Result<(), StoreError> {
    let task = store.dump(blocks.iter().map(|&n| (key(n), shard(n, part))).collect(), part)?;
    store.wait(task).map(drop)
}

#[test]
fn a_block_is_found_only_when_its_last_shard_has_come() {
    let (store, _) = store(SMALL);
    for part in [2, 0] {
        dump(&store, &[1, 2], part).unwrap();
        assert_eq!(store.lookup(&[key(1), key(2)]), [false, false]);
    }
    dump(&store, &[2], 1).unwrap();
    assert_eq!(store.lookup(&[key(1), key(2)]), [false, true]);
    assert_eq!(store.lookup_on_prefix(&[key(1), key(2)]), None);
    dump(&store, &[1], 1).unwrap();
    assert_eq!(store.lookup_on_prefix(&[key(1), key(2), key(3), key(1)]), Some(1));

    let buffers = vec![(key(2), vec![0; 40]), (key(1), vec![0; 40])];
    let task = store.load(buffers, 1).unwrap();
    assert_eq!(store.wait(task).unwrap(), [shard(2, 1).to_vec(), shard(1, 1).to_vec()]);
}

#[test]
fn whole_blocks_are_dumped_at_once() {
    let (store, stack) = store(SMALL);
    let whole = |n: u16| (key(n), Arc::from(block(n)));
    let task = store.dump_blocks(vec![whole(1), whole(2)]).unwrap();
    store.wait(task).unwrap();
    let mut bytes = vec![0; layout().block_bytes()];
    assert_eq!(stack.load(key(2), &mut bytes).unwrap(), TierName::HOST);
    assert_eq!(bytes, block(2));
    let short = store.dump_blocks(vec![(key(3), Arc::from(&block(3)[1..]))]);
    assert!(matches!(short, Err(StoreError::Layout { source: TierError::WrongSize { .. } })));
}

#[test]
fn discarded_and_surplus_partial_blocks_never_become_visible() {
    let (store, _) = store(SMALL);
    dump(&store, &[1, 2, 3], 0).unwrap();
    let refused = dump(&store, &[4], 0).unwrap_err();
    assert!(matches!(refused, StoreError::TooManyPartial { partial: 4, partial_max: 3 }));
    store.discard(&[key(1)]);
    dump(&store, &[4], 0).unwrap();
    store.discard(&[key(4)]);
    for part in [1, 2] {
        dump(&store, &[1], part).unwrap();
    }
    assert_eq!(store.lookup(&[key(1)]), [false], "shard 0 was discarded");
}

#[test]
fn a_refused_dump_leaves_no_partial_blocks_behind() {
    let (store, _) = store(StoreConfig { waiting_depth: 2, ..SMALL });
    let three = (1..4).map(|n| (key(n), shard(n, 0))).collect();
    assert!(matches!(store.dump(three, 0).err(), Some(StoreError::QueueFull { jobs: 3, depth: 2, .. })));
    // All three places are free for other blocks.
    for n in 4..7 {
        dump(&store, &[n], 0).unwrap();
    }
}

#[test]
fn failures_name_the_first_bad_block_and_end_the_wait() {
    let tier = Arc::new(FakeTier::new(TierName::DISK, layout(), Duration::from_millis(2)));
    let stack = Arc::new(TierStack::new(vec![tier.clone()]).unwrap());
    let store = Store::new(stack, SMALL).unwrap();
    tier.fail(key(3), Fault::Panics);
    tier.fail(key(2), Fault::Missing);
    let task = store.load((0..5).map(|n| (key(n), vec![0; 40])).collect(), 0).unwrap();
    while !store.check(&task) {
        std::thread::yield_now();
    }
    let Err(StoreError::Block { position: 2, source: TierError::NotFound { .. } }) = store.wait(task) else {
        panic!("block 2 is missing");
    };
    let misfit = store.load(vec![(key(1), vec![0; 39])], 0).err();
    assert!(matches!(misfit, Some(StoreError::Layout { source: TierError::WrongSize { .. } })));
}

#[test]
fn a_slow_tier_runs_into_the_timeout_and_a_long_task_into_the_queue_limit() {
    let tier = FakeTier::new(TierName::DISK, layout(), Duration::from_millis(100));
    let stack = Arc::new(TierStack::new(vec![Arc::new(tier)]).unwrap());
    let store = Store::new(stack, StoreConfig { timeout: Duration::from_millis(5), ..SMALL }).unwrap();
    let load = |blocks: u16| store.load((0..blocks).map(|n| (key(n), vec![0; 40])).collect(), 0);
    assert!(matches!(load(9).err(), Some(StoreError::QueueFull { jobs: 9, depth: 8, .. })));
    let task = load(1).unwrap();
    assert!(!store.check(&task));
    assert!(matches!(store.wait(task), Err(StoreError::Timeout { .. })));
}

#[test]
fn prefetch_copies_into_the_faster_tier_without_a_task() {
    let host = Arc::new(HostTier::new(layout(), 64, PolicyKind::Lru, None));
    let disk = Arc::new(FakeTier::new(TierName::DISK, layout(), Duration::ZERO));
    let stack = Arc::new(TierStack::new(vec![host, disk.clone()]).unwrap());
    let store = Store::new(stack.clone(), SMALL).unwrap();
    let keys: Vec<_> = (0..20).map(key).collect();
    let queued = store.prefetch(&keys);
    assert!((1..=8).contains(&queued));
    drop(store);
    assert_eq!(disk.reads().len(), queued);
    assert_eq!(stack.counters().tier(TierName::HOST).bytes_written, 120 * queued as u64);
}

proptest! {
    #![proptest_config(cases(64))]
    #[test]
    fn shards_in_any_order_make_the_same_blocks(
        order in Just((0..4u16).flat_map(|n| (0..3u32).map(move |s| (n, s))).collect::<Vec<_>>()).prop_shuffle(),
        dumped in 0usize..=12,
    ) {
        let (store, stack) = store(StoreConfig { waiting_depth: 64, partial_max: 8, ..SMALL });
        let tasks: Vec<_> = order[..dumped]
            .iter()
            .map(|&(n, part)| store.dump(vec![(key(n), shard(n, part))], part).unwrap())
            .collect();
        tasks.into_iter().for_each(|task| drop(store.wait(task).unwrap()));
        for n in 0..4 {
            let whole = order[..dumped].iter().filter(|(m, _)| *m == n).count() == 3;
            let mut bytes = vec![0; layout().block_bytes()];
            prop_assert_eq!(stack.load(key(n), &mut bytes).is_ok(), whole);
            prop_assert!(!whole || bytes == block(n));
        }
    }
}
