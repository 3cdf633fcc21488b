//! The store: blocks written in the background, and what becomes of failures.

use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kvblock::BlockHash;
use prefetch::policy::PolicyKind;
use prefetch::stack::TierStack;
use prefetch::store::{Store, StoreConfig, StoreError};
use prefetch::tier::{BlockLayout, HostTier, Stored, Tier, TierError, TierName};

use crate::conformance::{block, key, layout};

fn small() -> StoreConfig {
    StoreConfig::UCM.streams(2).waiting_depth(8)
}

/// A tier that writes nothing while the sender is there, has no room for block 2 and panics on block 3.
struct Reluctant(Mutex<Receiver<()>>);

impl Tier for Reluctant {
    fn name(&self) -> TierName {
        TierName::DISK
    }

    fn layout(&self) -> BlockLayout {
        layout()
    }

    fn capacity_blocks(&self) -> Option<u64> {
        None
    }

    fn contains(&self, _: BlockHash) -> Result<bool, TierError> {
        Ok(false)
    }

    fn read(&self, key: BlockHash, _: u32, _: &mut [u8]) -> Result<(), TierError> {
        Err(TierError::NotFound { tier: self.name(), key })
    }

    fn write(&self, block: BlockHash, _: &[u8]) -> Result<Stored, TierError> {
        // Nothing is sent; a wait ends because the sender is dropped.
        let _ = self.0.lock().unwrap_or_else(PoisonError::into_inner).recv();
        assert_ne!(block, key(3), "block 3 comes");
        if block == key(2) {
            return Err(TierError::Full { tier: self.name(), capacity_blocks: 0 });
        }
        Ok(Stored::Written)
    }

    fn remove(&self, _: BlockHash) -> Result<bool, TierError> {
        Ok(false)
    }
}

/// A store, and what holds its writes: declared later, it goes first, and the store can end what it was given.
fn reluctant(config: StoreConfig) -> (Store, Sender<()>) {
    let (held, wait) = mpsc::channel();
    let stack = TierStack::new(vec![Arc::new(Reluctant(Mutex::new(wait)))]).unwrap();
    (Store::new(Arc::new(stack), config).unwrap(), held)
}

fn blocks(range: std::ops::Range<u16>) -> Vec<(BlockHash, Arc<[u8]>)> {
    range.map(|n| (key(n), Arc::from(block(n)))).collect()
}

#[test]
fn blocks_are_found_once_their_task_has_ended_or_the_store_is_gone() {
    let tier = HostTier::new(layout(), 64, PolicyKind::Lru, None);
    let stack = Arc::new(TierStack::new(vec![Arc::new(tier)]).unwrap());
    let store = Store::new(stack.clone(), small()).unwrap();
    let task = store.dump(blocks(1..3)).unwrap();
    store.wait(task).unwrap();
    let mut bytes = vec![0; layout().block_bytes()];
    assert_eq!(stack.load(key(2), &mut bytes).unwrap(), TierName::HOST);
    assert_eq!(bytes, block(2));
    let short = store.dump(vec![(key(3), Arc::from(&block(3)[1..]))]);
    assert!(matches!(short, Err(StoreError::Layout { source: TierError::WrongSize { .. } })));
    store.dump(blocks(4..12)).unwrap();
    drop(store);
    assert!((4..12).all(|n| stack.lookup(key(n)).is_some()), "a store ends what it was given");
}

#[test]
fn failures_name_the_first_bad_block_and_end_the_wait() {
    let (store, held) = reluctant(small());
    let task = store.dump(blocks(0..5)).unwrap();
    assert!(!store.check(&task));
    drop(held);
    while !store.check(&task) {
        std::thread::yield_now();
    }
    let Err(StoreError::Block { position: 2, source: TierError::Full { .. } }) = store.wait(task) else {
        panic!("block 2 has no room");
    };
    let task = store.dump(blocks(3..5)).unwrap();
    let result = store.wait(task);
    assert!(matches!(result, Err(StoreError::Block { position: 0, source: TierError::Panicked { .. } })));
}

#[test]
fn a_slow_tier_runs_into_the_timeout_and_a_long_task_into_the_queue_limit() {
    let (store, _held) = reluctant(small().timeout(Duration::from_millis(5)));
    assert!(matches!(store.dump(blocks(4..13)).err(), Some(StoreError::QueueFull { jobs: 9, depth: 8, .. })));
    let task = store.dump(blocks(4..5)).unwrap();
    assert!(!store.check(&task));
    assert!(matches!(store.wait(task), Err(StoreError::Timeout { .. })));
}
