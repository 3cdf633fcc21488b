//! `keep_lists`, `vote_blocks` and `list_counts` for lists of any blocks.

use super::device::{assert_draw_passes, cases, gpu};
use attn_kernels::kernel::{keep_lists, list_counts, vote_blocks};
use proptest::prelude::*;
use proptest::test_runner::Config;

proptest! {
    #![proptest_config(Config { max_shrink_iters: 0, ..cases(24) })]

    #[test]
    fn lists_are_kept_voted_on_and_counted(seed: u64) {
        if let Some(gpu) = gpu() {
            for variant in [keep_lists::variant(), vote_blocks::variant(), list_counts::variant()] {
                assert_draw_passes(gpu, variant, seed);
            }
        }
    }
}
