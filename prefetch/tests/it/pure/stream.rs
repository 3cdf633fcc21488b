//! Streams through the staging ring, and what a request does when a block is bad.

use std::sync::Arc;
use std::time::Duration;

use kvblock::{BlockHash, BlockIdx, BlockSize};
use prefetch::failure::{FailurePolicy, Recovery};
use prefetch::stack::TierStack;
use prefetch::stream::{StreamConfig, stream_shards};
use prefetch::testing::{FakeTier, Fault};
use prefetch::tier::{TierError, TierName};
use proptest::prelude::*;

use super::{hash, hashes, layout};
use crate::conformance::cases;

fn tiers() -> (Arc<FakeTier>, TierStack) {
    let tier = Arc::new(FakeTier::new(TierName::DISK, layout(), Duration::ZERO));
    (tier.clone(), TierStack::new(vec![tier]).unwrap())
}

fn consume(stack: &TierStack, blocks: &[BlockHash], config: StreamConfig) -> (Vec<Vec<u8>>, Option<usize>) {
    let mut seen = Vec::new();
    let result = stream_shards(stack, blocks, 1, config, |position, bytes| {
        assert_eq!(position, seen.len());
        seen.push(bytes.to_vec());
    });
    (seen, result.err().map(|error| error.position))
}

proptest! {
    #![proptest_config(cases(64))]
    #[test]
    fn shards_arrive_in_order_up_to_the_first_bad_block(
        blocks in prop::collection::vec(0u8..100, 0..20),
        bad in prop::collection::hash_set(0u8..100, 0..10),
        slow in prop::collection::hash_set(0u8..100, 0..10),
        slots in 1usize..5,
        readers in 1usize..4,
    ) {
        let (tier, stack) = tiers();
        slow.iter().for_each(|&n| tier.fail(hash(n), Fault::Slow(Duration::from_micros(300))));
        bad.iter().for_each(|&n| tier.fail(hash(n), Fault::Missing));
        let (seen, failed) = consume(&stack, &hashes(blocks.clone()), StreamConfig::new(slots, readers));
        let first_bad = blocks.iter().position(|n| bad.contains(n));
        prop_assert_eq!(failed, first_bad);
        let good = &blocks[..first_bad.unwrap_or(blocks.len())];
        let expected: Vec<_> =
            good.iter().map(|&n| FakeTier::contents(layout(), hash(n))[8..16].to_vec()).collect();
        prop_assert_eq!(seen, expected);
    }
}

#[test]
fn reading_runs_ahead_of_the_consumer() {
    let tier = Arc::new(FakeTier::new(TierName::DISK, layout(), Duration::from_millis(20)));
    let stack = TierStack::new(vec![tier]).unwrap();
    let config = StreamConfig::new(2, 1);
    let compute = Duration::from_millis(30);
    stream_shards(&stack, &hashes(0..10), 0, config, |_, _| std::thread::sleep(compute)).unwrap();
    // Only the first of ten loads has nothing to hide behind.
    let overlap = stack.counters().overlap();
    assert!(overlap.hidden().unwrap() > 0.5, "{overlap:?}");
}

#[test]
fn a_panic_of_the_consumer_passes_through_and_frees_the_readers() {
    let (_, stack) = tiers();
    let config = StreamConfig::new(1, 2);
    let stop = std::panic::AssertUnwindSafe(|| {
        stream_shards(&stack, &hashes(0..10), 0, config, |position, _| assert!(position < 3, "stop here"))
    });
    assert!(std::panic::catch_unwind(stop).is_err());
}

#[test]
fn the_error_of_a_stream_keeps_its_cause() {
    let (tier, stack) = tiers();
    tier.fail(hash(2), Fault::Broken);
    let config = StreamConfig::new(2, 2);
    let error = stream_shards(&stack, &hashes(0..5), 0, config, |_, _| {}).unwrap_err();
    assert!(error.position == 2 && matches!(error.error, TierError::Backend { .. }), "{error:?}");
}

#[test]
fn bad_blocks_fail_the_request_or_truncate_it() {
    let block_size = BlockSize::new(16).unwrap();
    let loaded = hashes(10..15);
    // Blocks 2..7 of the sequence were to be loaded, and 7 * 16 tokens counted as computed.
    let recover = |policy: FailurePolicy, bad: &[u32], computed| {
        policy.recover(&loaded, BlockIdx::new(2), bad, computed, block_size)
    };
    assert_eq!(recover(FailurePolicy::Fail, &[], 112), Recovery::Unaffected);
    assert_eq!(recover(FailurePolicy::Fail, &[3], 112), Recovery::Fail { unhash: hashes(13..15) });
    let truncated = Recovery::Recompute { computed_tokens: 48, unhash: hashes(11..15) };
    assert_eq!(recover(FailurePolicy::Recompute, &[4, 1, 3], 112), truncated);
    let shorter = Recovery::Recompute { computed_tokens: 40, unhash: hashes(11..15) };
    assert_eq!(recover(FailurePolicy::Recompute, &[1], 40), shorter, "never more than was computed");
}
