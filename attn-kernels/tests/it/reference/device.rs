//! The device that all tests share, and how results are compared.

use attn_kernels::gpu::{Checks, Gpu, GpuOptions};
use attn_kernels::self_test::{self, Cases, Spec, skipped};
use attn_kernels::{Access, NamedVariant, Variant};
use proptest::test_runner::Config;
use std::sync::OnceLock;

/// The best adapter, opened once; `None` only where `ATTN_GPU=skip` says that there is none.
pub(crate) fn gpu() -> Option<&'static Gpu> {
    static GPU: OnceLock<Option<Gpu>> = OnceLock::new();
    let open = || {
        if std::env::var_os("ATTN_GPU").is_some_and(|value| value == "skip") {
            eprintln!("ATTN_GPU=skip: no kernel runs");
            return None;
        }
        let gpu = Gpu::open(&GpuOptions::new(Checks::On)).expect("GPU tests need an adapter");
        let info = gpu.info();
        eprintln!("adapter: {} ({}), level {}", info.name, info.backend, gpu.level());
        Some(gpu)
    };
    GPU.get_or_init(open).as_ref()
}

/// Whether the long form of every test is asked for.
pub(crate) fn is_long() -> bool {
    std::env::var_os("PAGODA_LONG_TESTS").is_some()
}

/// `cases` by default, four times as many in the long form, `PROPTEST_CASES` where it is set. The long form of all tests asks for
/// thousands, of which some kernels take hours of a software driver: there it is 32 times `cases` at most. Cases are made from
/// seeds: failing ones need no file.
pub(crate) fn cases(cases: u32) -> Config {
    let default = Config { failure_persistence: None, max_shrink_iters: 64, ..Config::default() };
    let (usual, most) = if is_long() { (4 * cases, 32 * cases) } else { (cases, u32::MAX) };
    let asked = std::env::var_os("PROPTEST_CASES").map(|_| default.cases.min(most));
    Config { cases: asked.unwrap_or(usual), ..default }
}

/// Fails if a case of the variant that `spec` chooses is not what its reference leaves. Names what the device does not run.
#[track_caller]
pub(crate) fn assert_passes(gpu: &Gpu, named: &NamedVariant, spec: &Spec) {
    for case in self_test::cases(&named.variant, spec) {
        match skipped(gpu, named, &case) {
            Some(reason) => eprintln!("{} ({}) is skipped: {reason}", named.name, named.level()),
            None => case.run(gpu).unwrap_or_else(|fault| panic!("{}, {spec:?}: {fault}", named.name)),
        }
    }
}

/// As [`assert_passes`], for a variant that no list need have, with the cases that `seed` draws.
#[track_caller]
pub(crate) fn assert_draw_passes(gpu: &Gpu, variant: Variant, seed: u64) {
    assert_passes(gpu, &NamedVariant { name: described(&variant), variant }, &Spec::random(seed));
}

/// Buffers that variants write and none of their cases compares.
pub(crate) fn uncompared(variants: &[NamedVariant], cases: Cases) -> Vec<String> {
    let of = |NamedVariant { name, variant }: &NamedVariant| {
        let cases = cases(variant, &Spec::default());
        let compared = |index| cases.iter().flat_map(|case| &case.wants).any(|(of, _)| *of == index);
        let written = variant.bindings.iter().enumerate().filter(|(_, of)| of.access == Access::Write);
        let left: Vec<_> = written.filter(|(index, _)| !compared(*index)).collect();
        left.into_iter().map(|(_, of)| format!("{name}: {}", of.name)).collect::<Vec<_>>()
    };
    variants.iter().flat_map(of).collect()
}

/// The kernel of a variant, and its choices.
pub(crate) fn described(variant: &Variant) -> String {
    format!("{}, {:?}", variant.kernel.name, variant.choices)
}

/// Fails with the first element whose bits differ.
#[track_caller]
pub(crate) fn assert_bits(what: &str, got: &[f32], want: &[f32]) {
    assert_eq!(got.len(), want.len(), "{what}: lengths");
    let differs = got.iter().zip(want).position(|(g, w)| g.to_bits() != w.to_bits());
    if let Some(i) = differs {
        panic!("{what}: element {i} is {:e} and {:e}", got[i], want[i]);
    }
}
