//! The self-test of the dense kernels: it knows every variant, and passes on the adapter that is there with bounds
//! checks on.

use std::collections::BTreeSet;

use attn_kernels::gpu::{Checks, Gpu, GpuOptions};
use attn_kernels::kernel::{KvDtype, KvLayout, KvShape};
use attn_kernels::self_test::{Size, Spec, gaps};
use attn_kernels::{Level, NamedVariant, TextLength};
use dense_kernels::kernel::{catalog, variants};
use dense_kernels::self_test::cases;

use crate::every;
use crate::kernels::device::{assert_passes, uncompared};

fn gpu(checks: Checks) -> Option<Gpu> {
    if std::env::var_os("ATTN_GPU").is_some_and(|value| value == "skip") {
        eprintln!("ATTN_GPU=skip: no kernel runs");
        return None;
    }
    Some(Gpu::open(&GpuOptions::new(checks)).expect("GPU tests need an adapter"))
}

#[test]
fn every_kernel_and_variant_has_cases() {
    let none: [String; 0] = [];
    assert_eq!(gaps(&catalog(), &variants(), cases), none);
}

#[test]
fn what_kernels_write_is_compared() {
    assert_eq!(uncompared(&variants(), cases), [""; 0]);
}

/// Products of a model's matrices, but those of experts, whose rows a case would have to sort.
#[test]
fn products_are_timed_at_any_size() {
    let cache = KvShape {
        num_kv_heads: 1,
        head_dim: 64,
        block_size: 16,
        dtype: KvDtype::F16,
        layout: KvLayout::Native,
    };
    let size = Size {
        num_heads: 1,
        cache,
        rows: 9,
        batch: 1,
        context: 1,
        shortest: None,
        partition: 6,
        select_block: 64,
        density: 1.0,
        k: 1,
        width: 768,
        cols: 100,
        vocab: 1,
    };
    let products = ["matmul", "matmul_tile", "matmul_int8", "matmul_int8_tile", "matmul_coop", "split_sum"];
    let mut seen = BTreeSet::new();
    for NamedVariant { name, variant } in variants() {
        let several = variant.choices.iter().any(|(slot, _)| *slot == "rows");
        if several || !products.contains(&variant.kernel.name) {
            continue;
        }
        seen.insert(variant.kernel.name);
        let made = cases(&variant, &Spec::sized(size));
        let [case] = &made[..] else { panic!("{name}: {} cases", made.len()) };
        assert_eq!((case.buffers.len(), case.wants.len()), (variant.bindings.len(), 0), "{name}");
        assert!(case.bytes() > 9.0 * 100.0 * 4.0, "{name}: {} bytes", case.bytes());
        let least = if variant.kernel.name == "split_sum" { 0.0 } else { 2.0 * 9.0 * 768.0 * 100.0 };
        assert!(case.operations >= least, "{name}: {} operations", case.operations);
    }
    assert_eq!(seen, BTreeSet::from(products));
}

/// Kernels whose results later kernels use as indices. The checks would hide what the engine, which runs without, gets.
#[test]
fn indices_stay_inside_their_buffers_whatever_the_scores() {
    let Some(gpu) = gpu(Checks::Off) else { return };
    let indices = |named: &NamedVariant| named.variant.kernel.bindings.iter().any(|binding| binding.indices);
    for named in variants().into_iter().filter(indices) {
        for case in cases(&named.variant, &Spec::default()) {
            case.run(&gpu).unwrap_or_else(|fault| panic!("{}: {fault}", named.name));
        }
    }
}

#[test]
fn every_variant_passes() {
    let Some(gpu) = gpu(Checks::On) else { return };
    every_passes_on(&gpu, |_| true);
}

/// Software drivers multiply matrices here alone.
#[test]
fn every_variant_with_matrices_passes() {
    let Some(gpu) = crate::adapter::gpu() else { return };
    every_passes_on(&gpu, |named| named.level() == Level::Coop);
}

/// Tiles of f32 have a text of their own on Intel's GPUs. By default every eighth of them: the others are of other types.
#[test]
fn tiles_pass_in_the_middle_text() {
    if gpu(Checks::On).is_none() {
        return;
    }
    let options = GpuOptions::new(Checks::On).text(TextLength::Middle);
    let gpu = Gpu::open(&options).expect("it opened before");
    let mut tiles = 0..;
    every_passes_on(&gpu, |named| {
        named.variant.kernel.name == "matmul_tile"
            && tiles.next().is_some_and(|n: usize| n.is_multiple_of(every(8)))
    });
}

fn every_passes_on(gpu: &Gpu, asked: impl FnMut(&NamedVariant) -> bool) {
    let variants = variants().into_iter().filter(asked);
    variants.for_each(|named| assert_passes(gpu, &named, &Spec::default()));
}
