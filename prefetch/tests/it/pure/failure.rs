//! Policy of requests whose blocks are bad.

use kvblock::{BlockIdx, BlockSize};
use prefetch::failure::{FailurePolicy, Recovery};

use super::hashes;

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
