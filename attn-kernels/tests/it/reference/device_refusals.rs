//! Kernels that are not given to a device without optional features and with WebGPU's default limits.

use super::device::gpu;
use attn_kernels::Level;
use attn_kernels::gpu::{Bound, Checks, Gpu, GpuError, GpuOptions, Pass, wgpu};
use attn_kernels::kernel::attention::Attention;
use attn_kernels::kernel::copy_blocks::{self, CopyBlocksParams};
use attn_kernels::kernel::paged_decode::{self, Lanes};
use attn_kernels::kernel::paged_prefill::{self, KeyLoads};
use attn_kernels::kernel::top_k::{self, Output};
use attn_kernels::kernel::{KvDtype, KvLayout, KvShape, paged_prefill_coop};
use insta::assert_snapshot;

/// The least device that WebGPU knows, on the adapter at hand.
fn least() -> Gpu {
    least_of_own().0
}

/// The least device that WebGPU knows, and wgpu's handle of it.
fn least_of_own() -> (Gpu, wgpu::Device) {
    let instance = wgpu::Instance::new(wgpu::InstanceDescriptor::new_without_display_handle());
    let adapter = pollster::block_on(instance.request_adapter(&wgpu::RequestAdapterOptions::default()))
        .expect("GPU tests need an adapter");
    let (device, queue) = pollster::block_on(adapter.request_device(&wgpu::DeviceDescriptor::default()))
        .expect("every adapter opens with the defaults");
    let gpu = Gpu::of(&adapter, device.clone(), queue, &GpuOptions::new(Checks::Off));
    (gpu.expect("the defaults are enough"), device)
}

#[test]
fn kernels_of_levels_that_it_lacks() {
    if gpu().is_none() {
        return;
    }
    let gpu = least();
    assert_eq!(gpu.level(), Level::Baseline);
    assert!(gpu.pipeline(&top_k::variant(Output::List, Level::Baseline)).is_ok());
    let refused = gpu.pipeline(&top_k::variant(Output::List, Level::Subgroup)).unwrap_err();
    assert!(
        matches!(refused, GpuError::NoSubgroups { kernel: "top_k", min: 1, level: Level::Baseline, .. }),
        "{refused}"
    );
    assert!(
        refused.to_string().starts_with("kernel top_k needs subgroups of any size: adapter"),
        "{refused}"
    );
    let shape = KvShape {
        num_kv_heads: 1,
        head_dim: 64,
        block_size: 16,
        dtype: KvDtype::F16,
        layout: KvLayout::Native,
    };
    let coop = paged_prefill_coop::variant(&shape, &Attention::default());
    let GpuError::NoCoop { kernel, level, .. } = gpu.pipeline(&coop).unwrap_err() else {
        panic!("another error than NoCoop")
    };
    assert_eq!((kernel, level), ("paged_prefill_coop", Level::Baseline));
}

/// Kernels for subgroups of another size would compile and be wrong.
#[test]
fn kernels_for_subgroups_of_other_sizes() {
    let Some(gpu) = gpu() else { return };
    let (smallest, largest) = (gpu.info().subgroup_min_size, gpu.info().subgroup_max_size);
    let shape = KvShape {
        num_kv_heads: 1,
        head_dim: 64,
        block_size: 16,
        dtype: KvDtype::F16,
        layout: KvLayout::Native,
    };
    for (lanes, form) in [(8, Lanes::Alone(8)), (8, Lanes::Subgroup(8)), (32, Lanes::Subgroup(32))] {
        let variant = paged_decode::variant(&shape, 4, form, &Attention::default());
        assert_eq!(variant.subgroups, lanes..=lanes);
        let fits = gpu.level() >= Level::Subgroup && (smallest, largest) == (lanes, lanes);
        match gpu.pipeline(&variant) {
            Ok(_) => assert!(fits, "{lanes} lanes on subgroups of {smallest} to {largest}"),
            Err(refused) => {
                assert!(!fits, "{refused}");
                let what = format!("kernel paged_decode_subgroup needs subgroups of {lanes} lanes: adapter");
                assert!(refused.to_string().starts_with(&what), "{refused}");
            }
        }
    }
    let broadcast = paged_prefill::variant(&shape, 4, KeyLoads::Broadcast, &Attention::default());
    assert_eq!(broadcast.subgroups, 8..=u32::MAX);
    assert_eq!(gpu.pipeline(&broadcast).is_ok(), gpu.level() >= Level::Subgroup && smallest >= 8);
}

/// Buffers of the caller's, which no limit of this crate's has seen.
#[test]
fn bindings_that_no_device_takes() {
    if gpu().is_none() {
        return;
    }
    let (gpu, device) = least_of_own();
    let shape = KvShape {
        num_kv_heads: 1,
        head_dim: 8,
        block_size: 4,
        dtype: KvDtype::F16,
        layout: KvLayout::Native,
    };
    let params = CopyBlocksParams { block_quads: copy_blocks::block_quads(&shape), copies: 2 };
    let pipeline = gpu.pipeline(&copy_blocks::variant()).unwrap();
    let pairs = gpu.upload("pairs", &[[0_u32, 1], [0, 2]]).unwrap();
    let own = |size| {
        let usage = wgpu::BufferUsages::STORAGE;
        let descriptor = wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation: false };
        gpu.share::<u32>(&device.create_buffer(&descriptor)).unwrap()
    };
    let refused = |cache: Bound| {
        let pass = || {
            let mut pass = Pass::new("copy");
            pass.dispatch_bytes(&pipeline, bytemuck::bytes_of(&params), &[(&pairs).into(), cache.clone()]);
            pass
        };
        let prepared = gpu.prepare(pass()).map(drop).unwrap_err().to_string();
        assert_eq!(gpu.submit(pass()).map(drop).unwrap_err().to_string(), prepared);
        prepared
    };
    assert_snapshot!(refused((&own(200 << 20)).into()), @"kernel copy_blocks: binding 2 is of 209715200 bytes, the device's limit is 134217728");
    assert_snapshot!(refused(own(1024).bind_from(1).into()), @"kernel copy_blocks: binding 2 begins at byte 4, not a multiple of 256");
    assert_snapshot!(refused(own(1024).bind_from(256).into()), @"kernel copy_blocks: binding 2 begins at byte 1024 of a buffer of 1024 bytes");
    assert_snapshot!(refused((&own(254)).into()), @"kernel copy_blocks: binding 2 is of 254 bytes, not a multiple of 4");
    assert_snapshot!(refused((&pairs).into()), @"kernel copy_blocks: bindings 1, which is read, and 2, which is written, are of one buffer");
    // The device goes on.
    let cache = gpu.upload("cache", &[7_u32; 64]).unwrap();
    let mut pass = Pass::new("copy");
    pass.dispatch_bytes(&pipeline, bytemuck::bytes_of(&params), &[(&pairs).into(), (&cache).into()]);
    gpu.submit(pass).unwrap().wait().unwrap();
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
