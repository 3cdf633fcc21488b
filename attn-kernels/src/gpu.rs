//! A small runtime over wgpu: one adapter, typed buffers, recorded passes, cached pipelines and bind groups.
//!
//! Work is data first. A [`Pass`] records dispatches; [`Gpu::submit`] is the one place that encodes them. Kernels of
//! other crates run in the same way: make a [`Kernel`](crate::Kernel), a [`Variant`](crate::Variant) of it, and
//! record.

mod adapter;
mod bind;
mod bind_groups;
mod buffer;
mod compiler;
mod error;
mod image;
mod kept;
mod matrices;
mod options;
mod own;
mod pass;
mod pass_results;
mod pipeline;
mod submit;

pub use crate::Level;
pub use adapter::adapters;
pub use bind::{Bind, Bindings, Bound, BoundList};
pub use buffer::{Buf, Raw, Upload};
pub use compiler::Compilation;
pub use error::GpuError;
pub use image::{IMAGE_ROW, Image, RawImage};
pub use options::{Checks, GpuOptions};
pub use own::Prepared;
pub use pass::{Pass, Read};
pub use pass_results::{PassResults, Pending, Readbacks, Submission, Timing};
pub use pipeline::Pipeline;
pub use submit::Encoded;
pub use wgpu;

use crate::TextLength;
use crate::profile::{DeviceProfile, Registers, Tuning};
use crate::verdicts::Verdicts;
use compiler::{Compiler, Counts};
use kept::Kept;
use matrices::matrix_size;
use options::{HOST_BUFFERS, OPTIONAL};
use pipeline::{BindGroupKey, PipelineCache};
use rustc_hash::FxHashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

/// An open device.
#[derive(Debug)]
pub struct Gpu {
    device: wgpu::Device,
    queue: wgpu::Queue,
    info: wgpu::AdapterInfo,
    profile: DeviceProfile,
    checks: Checks,
    text: TextLength,
    allocated: Arc<buffer::Accounts>,
    next_id: AtomicU64,
    made: AtomicU64,
    /// Range of buffers to refuse, counted from the next buffer that is created.
    refused: Mutex<Range<u64>>,
    fault: Arc<Fault>,
    pipelines: Mutex<PipelineCache>,
    compiler: Compiler,
    counts: Arc<Counts>,
    kept: Option<Kept>,
    bind_groups: Mutex<FxHashMap<BindGroupKey, wgpu::BindGroup>>,
    scratch: Mutex<submit::Scratch>,
}

/// The first error that arrived outside a call. Submissions report it.
#[derive(Debug, Default)]
struct Fault {
    lost: OnceLock<String>,
    error: Mutex<Option<String>>,
}

impl Gpu {
    /// Opens an adapter with all its limits and every optional feature it has.
    ///
    /// # Errors
    /// No adapter, none that matches, one under the limits that every kernel needs, or one that does not open.
    pub fn open(options: &GpuOptions) -> Result<Self, GpuError> {
        let adapter = adapter::choose(options.device.as_deref())?;
        let info = adapter.get_info();
        let limits = options.limits.clone().unwrap_or_else(|| adapter.limits());
        check_limits(&info.name, &limits)?;
        let mut features = adapter.features() & OPTIONAL & options.features;
        let matrices = adapter.features() & wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX;
        let size = matrix_size(&adapter, options);
        let level = best_level(features | matrices, size).min(options.level);
        features.set(HOST_BUFFERS, features.contains(HOST_BUFFERS) && options.host_buffers);
        let keeps = adapter.features() & wgpu::Features::PIPELINE_CACHE;
        let kernel_cache = options.kernel_cache.as_ref().filter(|_| !keeps.is_empty());
        if kernel_cache.is_some() {
            features |= keeps;
        }
        if level == Level::Coop {
            features |= wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX;
        }
        let descriptor = wgpu::DeviceDescriptor {
            label: Some("pagoda"),
            required_features: features,
            required_limits: limits,
            experimental_features: pipeline::experimental(level == Level::Coop),
            memory_hints: wgpu::MemoryHints::Performance,
            trace: wgpu::Trace::Off,
        };
        let opened = pollster::block_on(adapter.request_device(&descriptor));
        let (device, queue) =
            opened.map_err(|source| GpuError::Open { adapter: info.name.clone(), source })?;
        let fault = watch(&device);
        let kept = kernel_cache.and_then(|folder| Kept::open(folder, &device, &info));
        let gpu = Self { kept, ..Self::new(device, queue, info, level, options, fault) };
        gpu.with_matrices(size)
    }

    fn new(
        device: wgpu::Device,
        queue: wgpu::Queue,
        info: wgpu::AdapterInfo,
        level: Level,
        options: &GpuOptions,
        fault: Arc<Fault>,
    ) -> Self {
        let is_cpu = info.device_type == wgpu::DeviceType::Cpu;
        let usual = TextLength::of_vendor((!is_cpu).then_some(info.vendor));
        let profile = profile(&device, &info, level, options);
        Self {
            device,
            queue,
            info,
            profile,
            checks: options.checks,
            text: options.text.unwrap_or(usual),
            fault,
            allocated: Arc::default(),
            next_id: AtomicU64::new(0),
            made: AtomicU64::new(0),
            refused: Mutex::default(),
            pipelines: Mutex::default(),
            compiler: Compiler::default(),
            counts: Arc::default(),
            kept: None,
            bind_groups: Mutex::default(),
            scratch: Mutex::default(),
        }
    }

    /// The adapter's name, driver, type and subgroup sizes.
    #[must_use]
    pub fn info(&self) -> &wgpu::AdapterInfo {
        &self.info
    }

    /// The device's limits, which are the adapter's.
    #[must_use]
    pub fn limits(&self) -> wgpu::Limits {
        self.device.limits()
    }

    /// The features in use.
    #[must_use]
    pub fn features(&self) -> wgpu::Features {
        self.device.features()
    }

    /// The level that kernels are built for.
    #[must_use]
    pub fn level(&self) -> Level {
        self.profile.level
    }

    /// Profile of the device, from which kernels are chosen.
    #[must_use]
    pub fn profile(&self) -> &DeviceProfile {
        &self.profile
    }

    /// Sets the variants that the driver gets wrong: none of them is compiled, and choices of kernels pass over them.
    #[must_use]
    pub fn with_verdicts(self, verdicts: Verdicts) -> Self {
        Self { profile: self.profile.verdicts(verdicts), ..self }
    }

    /// Sets the sizes of work at which one kernel overtakes another.
    #[must_use]
    pub fn with_tuning(self, tuning: Tuning) -> Self {
        Self { profile: self.profile.tuning(tuning), ..self }
    }

    /// Whether kernels of [`Level::Coop`] run.
    #[must_use]
    pub fn runs_coop(&self) -> bool {
        self.profile.runs_matrices()
    }

    /// Whether kernels carry bounds checks.
    #[must_use]
    pub fn checks(&self) -> Checks {
        self.checks
    }

    /// Whether the adapter is a CPU. Kernels are chosen by [`DeviceProfile::software`].
    #[must_use]
    pub fn is_cpu(&self) -> bool {
        self.info.device_type == wgpu::DeviceType::Cpu
    }

    /// Maximum size of a binding, in bytes.
    #[must_use]
    pub fn max_binding_bytes(&self) -> u64 {
        self.profile.binding_bytes
    }

    /// Number of buffers, bind groups and pipelines made so far. A steady step makes none.
    #[must_use]
    pub fn objects_made(&self) -> u64 {
        self.made.load(Ordering::Relaxed)
    }

    /// Whether the device was lost: all work from then on fails with [`GpuError::Lost`].
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.fault.lost.get().is_some()
    }

    /// Destroys the device with all that is on it, as a reset of the driver does. Tests of the recovery call it.
    pub fn destroy(&self) {
        let _ = self.fault.lost.set("it was destroyed".into());
        self.device.destroy();
    }

    /// Fails if an error arrived outside of a call. A lost device fails every time, any other error once.
    fn fault(&self) -> Result<(), GpuError> {
        if let Some(message) = self.fault.lost.get() {
            return Err(GpuError::Lost { message: message.clone() });
        }
        match self.fault.error.lock().expect("no holder of this lock panics").take() {
            Some(message) => Err(GpuError::Validation { message }),
            None => Ok(()),
        }
    }
}

/// Returns the profile of a device that was opened at `level`.
fn profile(
    device: &wgpu::Device,
    info: &wgpu::AdapterInfo,
    level: Level,
    options: &GpuOptions,
) -> DeviceProfile {
    let limits = device.limits();
    let is_cpu = info.device_type == wgpu::DeviceType::Cpu;
    let usual = Registers::of_vendor((!is_cpu).then_some(info.vendor));
    DeviceProfile {
        software: options.software.unwrap_or(is_cpu),
        level,
        subgroups: [info.subgroup_min_size, info.subgroup_max_size],
        matrices: None,
        workgroup_bytes: limits.max_compute_workgroup_storage_size,
        workgroup_lanes: limits.max_compute_invocations_per_workgroup,
        registers: options.registers.unwrap_or(usual),
        binding_bytes: limits.max_buffer_size.min(limits.max_storage_buffer_binding_size),
        tuning: options.tuning,
        verdicts: Verdicts::NONE,
    }
}

/// Collects errors that wgpu would otherwise panic about.
fn watch(device: &wgpu::Device) -> Arc<Fault> {
    let fault = Arc::new(Fault::default());
    let errors = Arc::clone(&fault);
    device.on_uncaptured_error(Arc::new(move |error: wgpu::Error| {
        let mut first = errors.error.lock().expect("no holder of this lock panics");
        first.get_or_insert_with(|| error.to_string());
    }));
    let lost = Arc::clone(&fault);
    device.set_device_lost_callback(move |reason, message| {
        if reason != wgpu::DeviceLostReason::Destroyed {
            // Later reasons follow from the first.
            let _ = lost.lost.set(message);
        }
    });
    fault
}

/// Returns the best level of a device with `features`, on an adapter with matrices of size `matrix_size`, or without
/// usable matrices if the size is `None`.
fn best_level(features: wgpu::Features, matrix_size: Option<u32>) -> Level {
    if !features.contains(wgpu::Features::SUBGROUP) {
        return Level::Baseline;
    }
    let coop = wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX | wgpu::Features::SHADER_F16;
    if features.contains(coop) && matrix_size.is_some() { Level::Coop } else { Level::Subgroup }
}

/// Checks that the limits of an adapter are at least WebGPU's defaults, within which every kernel stays.
fn check_limits(adapter: &str, limits: &wgpu::Limits) -> Result<(), GpuError> {
    let needed: [(&'static str, u64, u64); 4] = [
        ("maxStorageBuffersPerShaderStage", limits.max_storage_buffers_per_shader_stage.into(), 8),
        ("maxComputeWorkgroupStorageSize", limits.max_compute_workgroup_storage_size.into(), 16384),
        ("maxComputeInvocationsPerWorkgroup", limits.max_compute_invocations_per_workgroup.into(), 256),
        ("maxStorageBufferBindingSize", limits.max_storage_buffer_binding_size, 128 << 20),
    ];
    for (limit, value, needed) in needed {
        if value < needed {
            return Err(GpuError::Limit { adapter: adapter.into(), limit, value, needed });
        }
    }
    Ok(())
}
