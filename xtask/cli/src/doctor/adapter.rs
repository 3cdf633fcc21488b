//! GPU adapters in the report.

use std::fmt;

use attn_kernels::gpu::{Checks, Gpu, GpuOptions, wgpu};
use models::tuning::ContestTimes;
use pagoda::tuning::{KeptTuning, Measurement};
use pagoda::verdicts::{Verdict, Verdicts};
use serde::Serialize;

use super::line;
use crate::references::Compared;
use crate::self_test::Tested;

/// A GPU adapter; `--device` takes its index or part of its name.
#[derive(Debug, Serialize)]
pub struct Adapter {
    /// Name of the adapter.
    pub name: String,
    /// Vulkan, Metal or DX12.
    pub backend: String,
    /// Discrete or integrated GPU, CPU, and so on.
    pub kind: String,
    /// Driver and its version.
    pub driver: String,
    /// Capabilities of the opened device.
    pub device: Option<Device>,
    /// Reason why the adapter cannot be opened.
    pub fault: Option<String>,
    /// Result of the last self-test under this driver.
    pub verdict: Option<Verdict>,
    /// Sizes at which matrix products switch to another kernel, if they were measured under this driver.
    pub tuning: Option<KeptTuning>,
    /// Results of this run's self-test, one per kernel variant.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub self_test: Vec<Tested>,
    /// Times of products in this run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub products: Option<Products>,
    /// Comparisons of models with their references, one per checkpoint.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub models: Vec<Compared>,
}

/// Times of products on an adapter.
#[derive(Debug, Serialize)]
pub struct Products {
    /// Times of each pair of kernels that were compared.
    pub times: Vec<ContestTimes>,
    /// Duration of the measurement in seconds, compilation included.
    pub seconds: f64,
}

/// Capabilities of an opened device.
#[derive(Debug, Serialize)]
pub struct Device {
    /// Whether the device is a CPU instead of a GPU; other kernels are chosen for CPUs.
    pub software: bool,
    /// The level that kernels are built for.
    pub level: &'static str,
    /// Smallest and largest subgroup size, in invocations.
    pub subgroup_sizes: [u32; 2],
    /// WebGPU features in use.
    pub features: Vec<String>,
    /// Limits of the device that decide which models and contexts fit.
    pub limits: Limits,
}

/// Limits of a device that decide which models and contexts fit.
#[derive(Debug, Serialize)]
pub struct Limits {
    /// Largest storage binding in bytes; one holds the K or V pool of a layer.
    pub storage_binding_bytes: u64,
    /// Largest buffer, in bytes.
    pub buffer_bytes: u64,
    /// Shared memory of a workgroup, in bytes.
    pub workgroup_bytes: u32,
    /// Maximum number of invocations per workgroup.
    pub workgroup_invocations: u32,
    /// Maximum number of storage buffers per kernel.
    pub storage_buffers: u32,
}

impl Adapter {
    /// Whether kernels can run on this adapter.
    pub fn usable(&self) -> bool {
        self.device.is_some()
    }

    /// Whether the adapter shares its memory with the host.
    pub(super) fn shares_memory(&self) -> bool {
        ["Cpu", "IntegratedGpu"].contains(&self.kind.as_str())
    }

    pub(super) fn is(&self, info: &wgpu::AdapterInfo) -> bool {
        self.name == info.name && self.backend == info.backend.to_string()
    }

    /// Sets the times of this run, and the values that follow from them.
    pub(super) fn measured(&mut self, measured: Measurement) {
        let Measurement { kept, times, seconds, .. } = measured;
        (self.tuning, self.products) = (Some(kept), Some(Products { times, seconds }));
    }

    pub(super) fn open(index: usize, info: &wgpu::AdapterInfo) -> Self {
        // As engines do: bounds checks would keep kernels by matrices away, and the level would be another than theirs.
        let options = GpuOptions::new(Checks::Off).device(Some(index.to_string()));
        let (device, fault) = match Gpu::open(&options) {
            Ok(gpu) => (Some(Device::of(&gpu)), None),
            Err(error) => (None, Some(format!("{:#}", anyhow::Error::from(error)))),
        };
        let known = Verdicts::of_this_user();
        Self {
            name: info.name.clone(),
            backend: info.backend.to_string(),
            kind: format!("{:?}", info.device_type),
            driver: format!("{} {}", info.driver, info.driver_info).trim().to_string(),
            device,
            fault,
            verdict: known.get(info).cloned(),
            tuning: known.tuning(info).cloned(),
            self_test: Vec::new(),
            products: None,
            models: Vec::new(),
        }
    }
}

impl Device {
    fn of(gpu: &Gpu) -> Self {
        let limits = gpu.limits();
        Self {
            software: gpu.profile().software,
            level: gpu.level().name(),
            subgroup_sizes: [gpu.info().subgroup_min_size, gpu.info().subgroup_max_size],
            features: gpu.features().iter_names().map(|(name, _)| name.to_string()).collect(),
            limits: Limits {
                storage_binding_bytes: limits.max_storage_buffer_binding_size,
                buffer_bytes: limits.max_buffer_size,
                workgroup_bytes: limits.max_compute_workgroup_storage_size,
                workgroup_invocations: limits.max_compute_invocations_per_workgroup,
                storage_buffers: limits.max_storage_buffers_per_shader_stage,
            },
        }
    }
}

/// Writes the findings about an adapter.
pub(super) fn write(f: &mut fmt::Formatter<'_>, index: usize, adapter: &Adapter) -> fmt::Result {
    let Adapter { name, backend, kind, driver, device, fault, verdict, .. } = adapter;
    line(f, &format!("adapter {index}"), format_args!("{name}: {kind}, {backend}, driver {driver}"))?;
    let Some(device) = device else {
        let fault = fault.as_deref().unwrap_or("for an unknown reason");
        return line(f, "", format_args!("cannot be opened: {fault}"));
    };
    let [least, most] = device.subgroup_sizes;
    line(f, "", format_args!("kernel level {}, subgroups of {least} to {most}", device.level))?;
    line(f, "", format_args!("features {}", device.features.join(" ")))?;
    let Limits {
        storage_binding_bytes,
        buffer_bytes,
        workgroup_bytes,
        workgroup_invocations,
        storage_buffers,
    } = device.limits;
    let (binding, buffer) = (storage_binding_bytes >> 20, buffer_bytes >> 20);
    line(f, "", format_args!("limits {binding} MiB per storage binding, {buffer} MiB per buffer,"))?;
    let workgroup = workgroup_bytes >> 10;
    line(
        f,
        "",
        format_args!(
            "       {workgroup} KiB and {workgroup_invocations} invocations per workgroup, {storage_buffers} storage buffers per kernel"
        ),
    )?;
    for row in &adapter.self_test {
        line(f, "", row)?;
    }
    for row in &adapter.models {
        line(f, "", row)?;
    }
    match verdict {
        Some(verdict) => line(f, "", verdict)?,
        None => {
            line(f, "", "kernels not compared with their references yet: doctor --self-test")?;
        }
    }
    write_products(f, device.software, adapter)
}

/// Writes the sizes at which matrix products switch to another kernel, and the times of this run.
fn write_products(f: &mut fmt::Formatter<'_>, software: bool, adapter: &Adapter) -> fmt::Result {
    if let Some(Products { times, seconds }) = &adapter.products {
        line(f, "", format_args!("products timed in {seconds:.1} s"))?;
        times.iter().try_for_each(|times| line(f, "", format_args!("  {times}")))?;
    }
    match &adapter.tuning {
        _ if software => line(f, "", "products of a processor, nothing to measure"),
        Some(tuning) => line(f, "", format_args!("products {tuning}")),
        None => line(f, "", "products of an H200, not measured yet: the first engine does it"),
    }
}
