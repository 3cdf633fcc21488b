//! Every dense kernel with the cases that a spec draws. A seed makes them all, so that nothing is gained by shrinking it.

use attn_kernels::Level;
use attn_kernels::self_test::Spec;
use dense_kernels::kernel::variants;
use proptest::prelude::*;
use proptest::test_runner::Config;

use crate::kernels::device::{assert_passes, cases, gpu};

proptest! {
    #![proptest_config(Config { max_shrink_iters: 0, ..cases(1) })]

    #[test]
    fn every_variant_computes_what_its_reference_does(seed: u64) {
        if let Some(gpu) = gpu() {
            let variants = variants().into_iter().filter(|named| named.level() <= Level::Subgroup);
            variants.for_each(|named| assert_passes(gpu, &named, &Spec::random(seed)));
        }
    }

    /// Matrices cannot be bounds-checked.
    #[test]
    fn kernels_of_matrices_compute_what_their_references_do(seed: u64) {
        if let Some(gpu) = crate::adapter::gpu() {
            let variants = variants().into_iter().filter(|named| named.level() == Level::Coop);
            variants.for_each(|named| assert_passes(&gpu, &named, &Spec::random(seed)));
        }
    }
}
