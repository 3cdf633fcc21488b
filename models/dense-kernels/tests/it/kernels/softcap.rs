//! `softcap` for logits of any size.

use super::device::{assert_draw_passes, cases, gpu};
use super::properties::{after, params};
use attn_kernels::self_test::{self, Spec};
use dense_kernels::kernel::softcap::{self, SoftcapParams};
use proptest::prelude::*;
use proptest::test_runner::Config;

proptest! {
    #![proptest_config(Config { max_shrink_iters: 0, ..cases(16) })]
    #[test]
    fn bounds_logits(seed: u64) {
        let Some(gpu) = gpu() else { return Ok(()) };
        assert_draw_passes(gpu, softcap::variant(), seed);
        let case = self_test::cases(&softcap::variant(), &Spec::random(seed)).remove(0);
        let SoftcapParams { rows, cols, cap } = params(&case);
        let logits = after(gpu, &case).swap_remove(0);
        let mut bounded = logits[..(rows * cols) as usize].iter().map(|bits| f32::from_bits(*bits).abs());
        prop_assert!(bounded.all(|x| x <= cap * 1.000_001), "a logit beyond {cap}");
    }
}
