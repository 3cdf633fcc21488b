//! The store: shards in, blocks out, nothing visible before it is whole.

use std::sync::Arc;
use std::time::Duration;

use prefetch::policy::PolicyKind;
use prefetch::stack::TierStack;
use prefetch::store::{Dump, Store, StoreConfig, StoreError};
use prefetch::testing::{FakeTier, Fault};
use prefetch::tier::{HostTier, TierError, TierName};
use proptest::prelude::*;

use crate::conformance::{block, cases, key, layout};

const SMALL: StoreConfig =
    StoreConfig::UCM.streams(2).waiting_depth(8).partial_max(3).timeout(Duration::from_secs(30));

fn store(config: StoreConfig) -> (Store, Arc<TierStack>) {
    let tier = HostTier::new(layout(), 64, PolicyKind::Lru, None);
    let stack = Arc::new(TierStack::new(vec![Arc::new(tier)]).unwrap());
    (Store::new(stack.clone(), config).unwrap(), stack)
}

fn shard(n: u16, shard: u32) -> Arc<[u8]> {
    block(n)[layout().shard_range(shard).unwrap()].into()
}

/// A dump of blocks, and the blocks.
struct Dumped<'a>(&'a Store, Dump, Vec<u16>);

impl<'a> Dumped<'a> {
    fn begin(store: &'a Store, blocks: &[u16]) -> Result<Self, StoreError> {
        Ok(Self(store, store.dump(blocks.iter().copied().map(key).collect())?, blocks.to_vec()))
    }

    fn shard(&self, part: u32) -> Result<(), StoreError> {
        let task = self.1.shard(part, self.2.iter().map(|&n| shard(n, part)).collect())?;
        self.0.wait(task).map(drop)
    }
}

#[test]
fn a_block_is_found_only_when_its_last_shard_has_come() {
    let (store, _) = store(SMALL);
    let [first, second] = [1, 2].map(|n| Dumped::begin(&store, &[n]).unwrap());
    for part in [2, 0] {
        [&first, &second].into_iter().for_each(|dump| dump.shard(part).unwrap());
        assert_eq!(store.lookup(&[key(1), key(2)]), [false, false]);
    }
    second.shard(1).unwrap();
    assert_eq!(store.lookup(&[key(1), key(2)]), [false, true]);
    assert_eq!(store.lookup_on_prefix(&[key(1), key(2)]), None);
    first.shard(1).unwrap();
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
fn given_up_and_surplus_partial_blocks_never_become_visible() {
    let (store, _) = store(SMALL);
    let three = [1, 2, 3].map(|n| Dumped::begin(&store, &[n]).unwrap());
    three.iter().for_each(|dump| dump.shard(0).unwrap());
    let refused = Dumped::begin(&store, &[4]).err().unwrap();
    assert!(matches!(refused, StoreError::TooManyPartial { partial: 4, partial_max: 3 }));
    let [first, ..] = three;
    drop(first);
    let fourth = Dumped::begin(&store, &[4]).unwrap();
    fourth.shard(0).unwrap();
    drop(fourth);
    let again = Dumped::begin(&store, &[1]).unwrap();
    [1, 2].into_iter().for_each(|part| again.shard(part).unwrap());
    assert_eq!(store.lookup(&[key(1)]), [false], "shard 0 was given up");
}

/// Two engines, or two threads of one, that dump the same prompt.
#[test]
fn several_dumps_of_one_block_leave_no_place_taken() {
    let (store, _) = store(SMALL);
    for round in 0..10 {
        let [first, second] = [1, 1].map(|n| Dumped::begin(&store, &[n]).unwrap());
        // The first completes the block between the shards of the second, which goes on or gives up.
        [0, 1].into_iter().for_each(|part| first.shard(part).unwrap());
        second.shard(0).unwrap();
        first.shard(2).unwrap();
        assert_eq!(store.lookup(&[key(1)]), [true]);
        first.shard(2).unwrap();
        second.shard(1).unwrap();
        if round % 2 == 0 {
            second.shard(2).unwrap();
        }
    }
    let all: Vec<_> = [4, 5, 6].map(|n| Dumped::begin(&store, &[n]).unwrap()).into();
    assert_eq!(all.len(), SMALL.partial_max, "every place is free");
}

#[test]
fn a_refused_shard_is_not_taken_and_a_dump_may_outlive_its_store() {
    let (store, _) = store(SMALL.waiting_depth(2));
    let dump = Dumped::begin(&store, &[1, 2, 3]).unwrap();
    assert!(matches!(dump.shard(0), Err(StoreError::QueueFull { jobs: 3, depth: 2, .. })));
    let short = dump.1.shard(0, vec![shard(1, 0)]);
    assert!(matches!(short.err(), Some(StoreError::BlockCount { given: 1, expected: 3 })));
    let Dumped(_, dump, _) = dump;
    drop(store);
    assert!(matches!(dump.shard(0, [1, 2, 3].map(|n| shard(n, 0)).into()).err(), Some(StoreError::ShutDown)));
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
    let store = Store::new(stack, SMALL.timeout(Duration::from_millis(5))).unwrap();
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
        let (store, stack) = store(SMALL.waiting_depth(64).partial_max(8));
        let dumps: Vec<Dump> = (0..4).map(|n| store.dump(vec![key(n)]).unwrap()).collect();
        let tasks: Vec<_> = order[..dumped]
            .iter()
            .map(|&(n, part)| dumps[usize::from(n)].shard(part, vec![shard(n, part)]).unwrap())
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
