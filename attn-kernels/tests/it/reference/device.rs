//! The device that all tests share, and how results are compared.

use attn_kernels::Variant;
use attn_kernels::cpu::Tolerance;
use attn_kernels::gpu::{Bound, Checks, Gpu, GpuOptions, Pass};
use bytemuck::Pod;
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

/// `cases` by default, `PROPTEST_CASES` where it is set. Cases are made from seeds, so failing ones need no file.
pub(crate) fn cases(cases: u32) -> Config {
    let asked = std::env::var_os("PROPTEST_CASES").is_some();
    let default = Config { failure_persistence: None, max_shrink_iters: 64, ..Config::default() };
    if asked { default } else { Config { cases, ..default } }
}

/// Records one dispatch.
pub(crate) fn dispatch<P: Pod>(
    gpu: &Gpu,
    pass: &mut Pass,
    variant: &Variant,
    params: &P,
    bindings: &[Bound],
    grid: [u32; 3],
) {
    let pipeline = gpu.pipeline(variant).unwrap_or_else(|e| panic!("{e}"));
    pass.dispatch_bytes(&pipeline, bytemuck::bytes_of(params), bindings, grid);
}

/// Fails with the worst element, its index and both values.
#[track_caller]
pub(crate) fn assert_close(what: &str, tolerance: Tolerance, got: &[f32], want: &[f32]) {
    if let Err(mismatch) = tolerance.compare(got, want) {
        panic!("{what}: {mismatch}");
    }
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
