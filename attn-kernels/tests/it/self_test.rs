//! The self-test itself: it knows every variant, passes on the adapter that is there with bounds checks on, and tells
//! a wrong result.

use std::collections::BTreeSet;

use attn_kernels::gpu::{Checks, Gpu, GpuOptions};
use attn_kernels::profile::Matrices;
use attn_kernels::self_test::{Case, Fault, Spec, Values, cases, gaps, skipped};
use attn_kernels::{Kernel, Level, NamedVariant, TextLength, Variant, catalog, variants};

use crate::reference::device::{self, assert_passes, is_long, uncompared};
use crate::reference::layer::small_variants;

/// Whether later kernels use what a kernel computes as indices.
fn makes_indices(kernel: &Kernel) -> bool {
    kernel.bindings.iter().any(|binding| binding.indices)
}

/// A device without bounds checks.
fn unchecked() -> Option<Gpu> {
    device::gpu().map(|_| Gpu::open(&GpuOptions::new(Checks::Off)).expect("it opened before"))
}

#[test]
fn every_kernel_and_variant_has_cases() {
    let none: [String; 0] = [];
    assert_eq!(gaps(&catalog(), &variants(), cases), none);
}

#[test]
fn what_kernels_write_is_compared() {
    let mut left = uncompared(&variants(), cases);
    // Scratch between the dispatches of one case.
    left.retain(|left| !left.starts_with("top_k_long-"));
    assert_eq!(left, [""; 0]);
}

#[test]
fn a_variant_without_cases_is_told() {
    let all = variants();
    let merge: Vec<_> = all.iter().filter(|named| named.name == "lse_merge").cloned().collect();
    let other = merge[0].variant.kernel;
    assert_eq!(gaps(&[other], &merge, |_, _| Vec::new()), ["lse_merge has no cases"]);
    assert_eq!(gaps(&[other], &[], cases), ["lse_merge has no variant"]);
    let partial = |variant: &Variant, spec: &Spec| {
        let mut cases = cases(variant, spec);
        cases.iter_mut().for_each(|case| case.wants.clear());
        cases
    };
    assert!(gaps(&[other], &merge, partial)[0].starts_with("lse_merge: "));
}

#[test]
fn every_variant_passes() {
    let Some(gpu) = device::gpu() else { return };
    every_passes_on(gpu, |_| true);
}

/// Software drivers multiply matrices here alone.
#[test]
fn every_variant_with_matrices_passes() {
    let Some(gpu) = crate::adapter::gpu() else { return };
    every_passes_on(&gpu, |named| named.level() == Level::Coop);
}

/// Software drivers run the short text, most GPUs the full one.
#[test]
fn every_variant_passes_in_the_other_text() {
    let Some(usual) = device::gpu() else { return };
    let other = if usual.is_cpu() { TextLength::Full } else { TextLength::Short };
    passes_in(other, TextLength::Full, TextLength::Short);
}

/// Intel's GPUs run a third text of some kernels.
#[test]
fn variants_that_have_a_middle_text_pass_in_it() {
    if device::gpu().is_none() {
        return;
    }
    passes_in(TextLength::Middle, TextLength::Middle, TextLength::Full);
}

/// Runs the variants whose texts of two lengths differ, in one of `length`; the others are of one text, which has been run. By
/// default one of each kernel and level: the others have the same loops, of other types and options.
fn passes_in(length: TextLength, one: TextLength, other: TextLength) {
    let text =
        |variant: &Variant, length| variant.wgsl_of(length, Matrices::NVIDIA).expect("variants compose");
    let differs = |named: &NamedVariant| text(&named.variant, one) != text(&named.variant, other);
    let options = GpuOptions::new(Checks::On).text(length);
    let mut run = BTreeSet::new();
    every_passes_on(&Gpu::open(&options).expect("it opened before"), |named| {
        differs(named) && (run.insert((named.variant.kernel.name, named.level())) || is_long())
    });
}

fn every_passes_on(gpu: &Gpu, asked: impl FnMut(&NamedVariant) -> bool) {
    for named in small_variants().into_iter().filter(asked) {
        assert_passes(gpu, &named, &Spec::default());
    }
}

/// The checks would hide what the engine, which runs without, gets. By default only hostile scores are given; with others,
/// `every_variant_passes`. They are given to one variant of a kernel, level and text: forms of a result differ after the choice.
#[test]
fn indices_stay_inside_their_buffers_whatever_the_scores() {
    let Some(gpu) = unchecked() else { return };
    for kernel in catalog().into_iter().filter(|kernel| makes_indices(kernel)) {
        let mut run = BTreeSet::new();
        let named = small_variants().into_iter().filter(|named| named.variant.kernel.name == kernel.name);
        let named = named.filter(|named| named.level() <= gpu.level());
        for named in named.filter(|named| run.insert((named.level(), named.variant.software)) || is_long()) {
            let cases = cases(&named.variant, &Spec::default());
            let hostile = || cases.iter().filter(|case| case.what == "any bits").flat_map(|case| &case.wants);
            for (index, binding) in (0..).zip(&named.variant.bindings).filter(|(_, binding)| binding.indices)
            {
                let compared = hostile().any(|(of, _)| *of == index);
                assert!(compared, "{}: no hostile case looks at {}", named.name, binding.name);
            }
            let given = |case: &&Case| is_long() || case.what == "any bits";
            for case in cases.iter().filter(given).filter(|case| skipped(&gpu, &named, case).is_none()) {
                case.run(&gpu).unwrap_or_else(|fault| panic!("{}: {fault}", named.name));
            }
        }
    }
}

#[test]
fn a_write_outside_a_buffer_is_told() {
    let Some(gpu) = unchecked() else { return };
    let named = variants().into_iter().find(|named| named.name == "copy_blocks").unwrap();
    let mut case: Case = cases(&named.variant, &Spec::default()).remove(0);
    // The last block of the eight that it writes, 6, now ends behind the buffer.
    let Values::Words(want) = &mut case.wants[0].1 else { panic!("words") };
    want.truncate(want.len() / 8 * 7 - 32);
    case.buffers[1].truncate(want.len());
    let fault = case.run(&gpu).unwrap_err();
    assert!(matches!(fault, Fault::Guard { binding: 2, index, len, .. } if index >= len as isize), "{fault}");
}

#[test]
fn a_wrong_result_is_told() {
    let Some(gpu) = device::gpu() else { return };
    let named = variants().into_iter().find(|named| named.name == "lse_merge").unwrap();
    let mut case = cases(&named.variant, &Spec::default()).remove(0);
    let Values::Floats(_, tolerance, want) = &mut case.wants[0].1 else { panic!("floats") };
    let index = want.iter().position(|x| x.abs() > 0.1).unwrap();
    assert!(tolerance.abs + tolerance.rel < 1e-4);
    want[index] *= 1.001;
    match case.run(gpu) {
        Err(Fault::Floats { binding: 3, mismatch, .. }) => {
            assert_eq!((mismatch.index, mismatch.outside), (index, 1));
        }
        other => panic!("{other:?}"),
    }

    let named = variants().into_iter().find(|named| named.name == "copy_blocks").unwrap();
    let mut case: Case = cases(&named.variant, &Spec::default()).remove(0);
    let Values::Words(want) = &mut case.wants[0].1 else { panic!("words") };
    want[77] ^= 1;
    let fault = case.run(gpu).unwrap_err();
    assert!(matches!(fault, Fault::Words { binding: 2, index: 77, .. }), "{fault}");
}
