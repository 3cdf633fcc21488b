//! What a device without optional features and with WebGPU's default limits is not given.

use crate::device::gpu;
use attn_kernels::Level;
use attn_kernels::gpu::{Checks, Gpu, GpuError, GpuOptions, Pass, wgpu};
use attn_kernels::kernel::attention::Attention;
use attn_kernels::kernel::top_k::{self, Output};
use attn_kernels::kernel::{KvDtype, KvShape, paged_prefill_coop};
use insta::assert_snapshot;

/// The least device that WebGPU knows, on the adapter at hand.
fn least() -> Gpu {
    let instance = wgpu::Instance::new(wgpu::InstanceDescriptor::new_without_display_handle());
    let adapter = pollster::block_on(instance.request_adapter(&wgpu::RequestAdapterOptions::default()))
        .expect("GPU tests need an adapter");
    let (device, queue) = pollster::block_on(adapter.request_device(&wgpu::DeviceDescriptor::default()))
        .expect("every adapter opens with the defaults");
    Gpu::of(&adapter, device, queue, &GpuOptions::new(Checks::Off)).expect("the defaults are enough")
}

#[test]
fn kernels_of_levels_that_it_lacks() {
    if gpu().is_none() {
        return;
    }
    let gpu = least();
    assert_eq!(gpu.level(), Level::Baseline);
    assert!(gpu.pipeline(&top_k::variant(Output::List, Level::Baseline)).is_ok());
    let lacks_subgroups = gpu.pipeline(&top_k::variant(Output::List, Level::Subgroup)).unwrap_err();
    assert!(
        matches!(&lacks_subgroups, GpuError::Compile { kernel: "top_k", message } if message.contains("SUBGROUP")),
        "{lacks_subgroups}"
    );
    let shape = KvShape { num_kv_heads: 1, head_dim: 64, block_size: 16, dtype: KvDtype::F16 };
    let coop = paged_prefill_coop::variant(&shape, &Attention::default());
    let GpuError::NoCoop { kernel, level, .. } = gpu.pipeline(&coop).unwrap_err() else {
        panic!("another error than NoCoop")
    };
    assert_eq!((kernel, level), ("paged_prefill_coop", Level::Baseline));
}

#[test]
fn memory_that_every_device_copies_from() {
    if gpu().is_none() {
        return;
    }
    let gpu = least();
    assert!(!gpu.has_host_buffers());
    let [from, other] = ["from", "other"].map(|name| gpu.upload_buffer::<u32>(name, 16).unwrap());
    let to = gpu.buffer::<u32>("to", 16).unwrap();
    gpu.write_mapped(&[(&from, 2, &[1, 2]), (&from, 8, &[3]), (&other, 0, &[4])]).unwrap();
    // What was written stays, and goes on being written between copies.
    for value in [5, 6] {
        gpu.write_mapped(&[(&from, 4, &[value])]).unwrap();
        let mut pass = Pass::new("copy");
        pass.copy(&from, 2..12, &to, 1);
        pass.copy(&other, 0..2, &to, 12);
        let read = pass.read(&to, 0..16);
        let got = gpu.submit(pass).unwrap().wait().unwrap().get(read);
        assert_eq!(got, [0, 1, 2, value, 0, 0, 0, 3, 0, 0, 0, 0, 4, 0, 0, 0]);
    }
}

#[test]
fn buffers_beyond_a_binding() {
    if gpu().is_none() {
        return;
    }
    let gpu = least();
    let too_large = gpu.buffer::<u32>("k_cache", 40 << 20).unwrap_err();
    assert_snapshot!(too_large, @"buffer k_cache of 167772160 bytes is over the device's limit of 134217728 bytes");
    // The device goes on.
    let buf = gpu.upload("small", &[1_u32, 2]).unwrap();
    let mut pass = Pass::new("read");
    let read = pass.read(&buf, 0..2);
    assert_eq!(gpu.submit(pass).unwrap().wait().unwrap().get(read), [1, 2]);
}
