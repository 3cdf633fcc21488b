//! The self-test of the dense kernels: it knows every variant, and passes on the adapter that is there with bounds
//! checks on.

use attn_kernels::gpu::{Checks, Gpu, GpuOptions};
use attn_kernels::self_test::{Spec, gaps};
use attn_kernels::{Level, NamedVariant, TextLength};
use dense_kernels::kernel::{catalog, variants};
use dense_kernels::self_test::cases;

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

/// Kernels whose results later kernels use as indices. The checks would hide what the engine, which runs without, gets.
#[test]
fn indices_stay_inside_their_buffers_whatever_the_scores() {
    let Some(gpu) = gpu(Checks::Off) else { return };
    for kernel in ["moe_route", "moe_sort", "sample", "scan_logits", "top_logits"] {
        for named in variants().into_iter().filter(|named| named.variant.kernel.name == kernel) {
            for case in cases(&named.variant, &Spec::default()) {
                case.run(&gpu).unwrap_or_else(|fault| panic!("{}: {fault}", named.name));
            }
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

/// Tiles of f32 have a text of their own on Intel's GPUs.
#[test]
fn tiles_pass_in_the_middle_text() {
    if gpu(Checks::On).is_none() {
        return;
    }
    let options = GpuOptions::new(Checks::On).text(TextLength::Middle);
    let gpu = Gpu::open(&options).expect("it opened before");
    every_passes_on(&gpu, |named| named.variant.kernel.name == "matmul_tile");
}

fn every_passes_on(gpu: &Gpu, asked: impl Fn(&NamedVariant) -> bool) {
    let variants = variants().into_iter().filter(asked);
    variants.for_each(|named| assert_passes(gpu, &named, &Spec::default()));
}
