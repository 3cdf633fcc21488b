//! `v4_compress` against the compressor of `sparse-select`, for entries of any size.

use super::device::{assert_draw_passes, cases, gpu};
use attn_kernels::kernel::v4_compress::{self, EntryShape};
use proptest::prelude::*;
use sparse_select::v4::compressor::{ROPE_DIM, Ratio};

proptest! {
    #![proptest_config(cases(6))]
    #[test]
    fn compresses_as_the_reference_does(
        large: bool,
        dim in prop::sample::select(vec![64u32, 66, 128, 130, 512]),
        seed: u64,
    ) {
        if let Some(gpu) = gpu() {
            let ratio = if large { Ratio::C128 } else { Ratio::C4 };
            let [rope, windows] = [ROPE_DIM, ratio.coff()].map(|size| u32::try_from(size).unwrap());
            assert_draw_passes(gpu, v4_compress::variant(&EntryShape { dim, rope, windows }), seed);
        }
    }
}
