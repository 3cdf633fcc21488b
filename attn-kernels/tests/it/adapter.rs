//! The device of tests of the coop level. Shared by the crates with kernels.

use attn_kernels::gpu::{Checks, Gpu, GpuOptions};

/// The best adapter, if it runs kernels of the coop level.
pub(crate) fn gpu() -> Option<Gpu> {
    if std::env::var_os("ATTN_GPU").is_some_and(|value| value == "skip") {
        eprintln!("ATTN_GPU=skip: no kernel runs");
        return None;
    }
    // A software driver with matrices multiplies them here, if nowhere else.
    let options = GpuOptions::new(Checks::Off).software(false);
    let gpu = Gpu::open(&options).expect("GPU tests need an adapter");
    if !gpu.runs_coop() {
        let info = gpu.info();
        eprintln!(
            "{}: level {}, subgroups of {} to {}: nothing of level coop runs here",
            info.name,
            gpu.level(),
            info.subgroup_min_size,
            info.subgroup_max_size
        );
        return None;
    }
    Some(gpu)
}
