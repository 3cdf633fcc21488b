//! Kernels on their way: how far they are, what a driver does not take, and what outlives a device.

use super::device::gpu;
use attn_kernels::gpu::{Checks, Compilation, Gpu, GpuError, GpuOptions, Pass, wgpu};
use attn_kernels::kernel::{copy_blocks, lse_merge};
use attn_kernels::self_test::{Spec, cases};
use attn_kernels::{Kernel, Variant};
use std::fs;

static BROKEN: Kernel = Kernel {
    wgsl: "@compute @workgroup_size(1)\nfn copy_blocks() { let whole: u32 = 1.5f; }",
    ..copy_blocks::KERNEL
};

fn open(options: GpuOptions) -> Gpu {
    Gpu::open(&options).expect("GPU tests need an adapter")
}

fn run(gpu: &Gpu, variant: &Variant) {
    cases(variant, &Spec::default())[0].run(gpu).unwrap();
}

#[test]
fn what_does_not_compile_is_told_where_it_is_waited_for() {
    let Some(gpu) = gpu() else { return };
    let pipeline = gpu.pipeline(&Variant::new(&BROKEN)).unwrap();
    let refused = pipeline.wait().unwrap_err();
    assert!(matches!(refused, GpuError::Compile { kernel: "copy_blocks", .. }), "{refused}");
    let cache = gpu.upload("cache", &[[7_u32; 4]; 4]).unwrap();
    let pairs = gpu.upload("pairs", &[[0_u32, 1]]).unwrap();
    let pass = || {
        let mut pass = Pass::new("copy");
        let params = copy_blocks::CopyBlocksParams { block_quads: 1, copies: 1 };
        let bindings = [(&pairs).into(), (&cache).into()];
        pass.dispatch_bytes(&pipeline, bytemuck::bytes_of(&params), &bindings);
        pass
    };
    assert_eq!(gpu.submit(pass()).map(drop).unwrap_err().to_string(), refused.to_string());
    assert_eq!(gpu.prepare(pass()).map(drop).unwrap_err().to_string(), refused.to_string());
    // The device goes on.
    run(gpu, &copy_blocks::variant());
}

#[test]
fn kernels_are_counted_once() {
    if gpu().is_none() {
        return;
    }
    let gpu = open(GpuOptions::new(Checks::On));
    assert_eq!(gpu.compilation(), Compilation::default());
    for asked in [1, 1] {
        run(&gpu, &copy_blocks::variant());
        assert_eq!(gpu.compilation(), Compilation { ready: asked, asked });
    }
    run(&gpu, &lse_merge::variant(8));
    assert_eq!(gpu.compilation(), Compilation { ready: 2, asked: 2 });
}

/// Lavapipe gives out a header alone, other drivers what they have compiled.
#[test]
fn compiled_kernels_outlive_the_device_and_damage_does_nothing() {
    let Some(gpu) = gpu() else { return };
    let folder = tempfile::tempdir().unwrap();
    let kernels = folder.path().join("kernels");
    let options = || GpuOptions::new(Checks::On).kernel_cache(kernels.clone());
    let first = open(options());
    if wgpu::util::pipeline_cache_key(gpu.info()).is_none() {
        assert!(!first.keep_kernels().unwrap());
        return;
    }
    run(&first, &copy_blocks::variant());
    assert!(first.keep_kernels().unwrap());
    assert!(!first.keep_kernels().unwrap(), "nothing is new");
    drop(first);
    let file = || {
        let files: Vec<_> = fs::read_dir(&kernels).unwrap().map(|file| file.unwrap().path()).collect();
        assert_eq!(files.len(), 1, "{files:?}");
        files[0].clone()
    };
    let whole = fs::read(file()).unwrap();
    let mut turned = whole.clone();
    *turned.last_mut().unwrap() ^= 1;
    for damaged in [&turned[..], &whole[..whole.len() / 2], &[], &[0xff; 1000]] {
        fs::write(file(), damaged).unwrap();
        let gpu = open(options());
        run(&gpu, &copy_blocks::variant());
        drop(gpu);
        assert_ne!(fs::read(file()).unwrap(), damaged);
    }
    let again = open(options());
    run(&again, &copy_blocks::variant());
}
