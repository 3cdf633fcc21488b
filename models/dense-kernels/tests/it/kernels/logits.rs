//! `scan_logits`, `adjust_logits` and `top_logits` for vocabularies of any size.

use super::device::{assert_draw_passes, cases, gpu};
use super::properties::{assert_same_bits, params};
use attn_kernels::self_test::{self, Spec};
use dense_kernels::kernel::scan_logits::{TOKENS_PER_LANE, TOKENS_PER_LANE_ON_CPU};
use dense_kernels::kernel::top_logits::{self, TopLogitsParams};
use dense_kernels::kernel::{adjust_logits, scan_logits};
use proptest::prelude::*;
use proptest::test_runner::Config;

/// Drawing may leave such an id for a row of NaN: it must not become an index.
#[test]
fn a_target_outside_the_vocabulary_reads_the_last_token() {
    let Some(gpu) = gpu() else { return };
    let case = self_test::cases(&top_logits::variant(TOKENS_PER_LANE), &Spec::default()).remove(0);
    let TopLogitsParams { vocab, .. } = params(&case);
    let [outside, last] = [u32::MAX, vocab - 1].map(|target| {
        let mut case = case.clone();
        case.buffers[2].fill(target);
        case
    });
    assert_same_bits(gpu, &outside, &last);
}

proptest! {
    #![proptest_config(Config { max_shrink_iters: 0, ..cases(16) })]

    #[test]
    fn rows_of_any_vocabulary(blocks_of_cpu: bool, seed: u64) {
        if let Some(gpu) = gpu() {
            let each = if blocks_of_cpu { TOKENS_PER_LANE_ON_CPU } else { TOKENS_PER_LANE };
            assert_draw_passes(gpu, scan_logits::variant(each), seed);
            assert_draw_passes(gpu, top_logits::variant(each), seed);
            assert_draw_passes(gpu, adjust_logits::variant(), seed);
        }
    }
}
