//! Every kernel with the cases that a spec draws. A seed makes them all, so that nothing is gained by shrinking it.

use attn_kernels::declare::Sizes;
use attn_kernels::gpu::Gpu;
use attn_kernels::kernel::paged_prefill::{KeyLoads, heads_per_lane};
use attn_kernels::self_test::Spec;
use attn_kernels::{Kernel, Level, NamedVariant, catalog, variants};
use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::test_runner::Config;

use crate::reference::device::{assert_passes, cases, gpu, is_long};
use crate::reference::layer::small_variants;

/// Sizes of models, the largest among them.
fn sizes() -> impl Strategy<Value = Sizes> {
    let head_dim = prop_oneof![select(vec![16, 32, 64, 128, 256]), (2u32..=32).prop_map(|n| 8 * n)];
    let group = select(vec![1, 2, 3, 4, 7, 8, 16]);
    (head_dim, group, 1u32..=3, 2u32..=8).prop_map(|(head_dim, group, num_kv_heads, log)| Sizes {
        head_dim,
        num_heads: num_kv_heads * group,
        num_kv_heads,
        block_size: 1 << log,
    })
}

/// Sizes near `sizes` that a kernel serves.
fn served(kernel: &Kernel, sizes: Sizes) -> Sizes {
    let Sizes { head_dim, num_heads, .. } = sizes;
    match kernel.name {
        // Software drivers need a minute to compile four heads of 256 in a lane.
        "paged_prefill" => {
            let heads = heads_per_lane(&sizes.f16(), num_heads, KeyLoads::Broadcast);
            Sizes { head_dim: head_dim.min(64 / heads / 8 * 8), ..sizes }
        }
        // Latents of four heads, and a rope part of half a head.
        "latent_write" | "mla_decode" => Sizes { head_dim: (head_dim / 2).next_multiple_of(16), ..sizes },
        _ => sizes,
    }
}

/// Runs the cases of a spec for one variant of each kernel that has some of `levels`; by default of the fifth of them that
/// the seed draws, as a software driver compiles each anew.
fn each_kernel(gpu: &Gpu, levels: &[Level], sizes: Sizes, which: Index, seed: u64) {
    let every = if is_long() { 1 } else { 5 };
    // Kernels of matrices refuse most sizes: they are asked for theirs alone.
    let all = variants();
    let has = |kernel: &Kernel| {
        all.iter().any(|named| named.variant.kernel.name == kernel.name && levels.contains(&named.level()))
    };
    let kernels = catalog().into_iter().filter(|kernel| has(kernel));
    let variants = kernels.map(|kernel| {
        let mut variants = NamedVariant::list(&[kernel], &served(kernel, sizes));
        variants.retain(|named| levels.contains(&named.level()));
        variants
    });
    let some = variants.filter(|variants| !variants.is_empty());
    for (_, variants) in (seed % every..).zip(some).filter(|(n, _)| n.is_multiple_of(every)) {
        assert_passes(gpu, which.get(&variants), &Spec::random(seed));
    }
}

proptest! {
    #![proptest_config(Config { max_shrink_iters: 0, ..cases(1) })]

    /// By default the seed also draws which eighteenth of the variants it is: a software driver compiles again for other sizes,
    /// and `self_test` runs all of them.
    #[test]
    fn every_variant_computes_what_its_reference_does(seed: u64) {
        if let Some(gpu) = gpu() {
            let every = if is_long() { 1 } else { 18 };
            let variants = small_variants().into_iter().filter(|named| named.level() <= Level::Subgroup);
            let drawn = (seed % every..).zip(variants).filter(|(n, _)| n.is_multiple_of(every));
            drawn.for_each(|(_, named)| assert_passes(gpu, &named, &Spec::random(seed)));
        }
    }

    #[test]
    fn every_kernel_serves_models_of_any_size(sizes in sizes(), which: Index, seed: u64) {
        if let Some(gpu) = gpu() {
            each_kernel(gpu, &[Level::Baseline, Level::Subgroup], sizes, which, seed);
        }
    }

    /// Matrices cannot be bounds-checked, and serve heads of whole tiles.
    #[test]
    fn kernels_of_matrices_serve_heads_of_whole_tiles(
        heads in select(vec![[16, 4], [32, 16], [64, 7], [128, 2]]),
        num_kv_heads in 1u32..=3,
        which: Index,
        seed: u64,
    ) {
        if let Some(gpu) = crate::adapter::gpu() {
            let [head_dim, group] = heads;
            let sizes = Sizes { head_dim, num_heads: num_kv_heads * group, num_kv_heads, block_size: 16 };
            each_kernel(&gpu, &[Level::Coop], sizes, which, seed);
        }
    }
}
