//! Compiled kernels, cached by variant. The one place with `unsafe`: trusted modules.

use super::{Checks, Gpu, GpuError};
use crate::{Access, Level, Variant};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard};

/// A compiled kernel.
#[derive(Debug)]
pub struct Pipeline {
    pub(super) raw: wgpu::ComputePipeline,
    pub(super) layout: wgpu::BindGroupLayout,
    pub(super) layout_id: u64,
    pub(super) variant: Variant,
}

impl Pipeline {
    /// The variant that it was compiled from.
    #[must_use]
    pub fn variant(&self) -> &Variant {
        &self.variant
    }
}

/// Layout, parameter buffer, then `(buffer id, offset)` of each binding.
#[derive(PartialEq, Eq, Hash, Debug)]
pub(super) struct BindGroupKey(pub(super) SmallVec<[u64; 18]>);

#[derive(Debug, Default)]
pub(super) struct PipelineCache {
    pipelines: FxHashMap<Variant, Arc<Pipeline>>,
    /// Kernels with equal interfaces share a layout, and with it bind groups.
    layouts: FxHashMap<(usize, Vec<Access>), (u64, wgpu::BindGroupLayout)>,
}

static NEXT_LAYOUT: AtomicU64 = AtomicU64::new(0);

impl Gpu {
    /// Compiles a variant, once; others are compiled by other threads meanwhile.
    ///
    /// # Errors
    /// [`GpuError::Compose`], [`GpuError::NoCoop`], [`GpuError::NoSubgroups`] and [`GpuError::Compile`], with the kernel's name.
    pub fn pipeline(&self, variant: &Variant) -> Result<Arc<Pipeline>, GpuError> {
        if let Some(pipeline) = self.cached().pipelines.get(variant) {
            return Ok(Arc::clone(pipeline));
        }
        let pipeline = Arc::new(self.compile(variant)?);
        // Another thread may have been faster with the same one.
        Ok(Arc::clone(self.cached().pipelines.entry(variant.clone()).or_insert(pipeline)))
    }

    fn cached(&self) -> MutexGuard<'_, PipelineCache> {
        self.pipelines.lock().expect("no holder of this lock panics")
    }

    fn compile(&self, variant: &Variant) -> Result<Pipeline, GpuError> {
        self.made.fetch_add(1, Ordering::Relaxed);
        let kernel = variant.kernel;
        let wgsl = variant.wgsl_of(self.text)?;
        debug_assert_eq!(variant.level, level_of(&wgsl), "level of kernel {}", kernel.name);
        self.check_level(variant)?;
        let scope = self.device.push_error_scope(wgpu::ErrorFilter::Validation);
        let internal = self.device.push_error_scope(wgpu::ErrorFilter::Internal);
        let module = self.module(kernel.name, wgsl);
        let accesses: Vec<Access> = variant.bindings.iter().map(|binding| binding.access).collect();
        let params_bytes = kernel.params.bytes;
        let new_layout =
            || (NEXT_LAYOUT.fetch_add(1, Ordering::Relaxed), self.layout(params_bytes, &accesses));
        let key = (params_bytes, accesses.clone());
        let (layout_id, layout) = self.cached().layouts.entry(key).or_insert_with(new_layout).clone();
        let pipeline_layout = self.device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            label: Some(kernel.name),
            bind_group_layouts: &[Some(&layout)],
            immediate_size: 0,
        });
        let constants: Vec<(&str, f64)> =
            variant.constants.iter().map(|(name, value)| (*name, f64::from(*value))).collect();
        let raw = self.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: Some(kernel.name),
            layout: Some(&pipeline_layout),
            module: &module,
            entry_point: Some(kernel.name),
            compilation_options: wgpu::PipelineCompilationOptions {
                constants: &constants,
                // Every kernel writes what it reads; clearing would cost a pass over workgroup memory.
                zero_initialize_workgroup_memory: false,
            },
            cache: None,
        });
        let failed = [pollster::block_on(internal.pop()), pollster::block_on(scope.pop())];
        if let Some(error) = failed.into_iter().flatten().next() {
            return Err(GpuError::Compile { kernel: kernel.name, message: error.to_string() });
        }
        Ok(Pipeline { raw, layout, layout_id, variant: variant.clone() })
    }

    /// Refuses a variant whose level does not run here, or that counts on subgroups of another size: it would compile and be
    /// wrong.
    fn check_level(&self, variant: &Variant) -> Result<(), GpuError> {
        let (kernel, needed) = (variant.kernel.name, &variant.subgroups);
        let (adapter, level, checks) = (self.info.name.clone(), self.level, self.checks);
        let subgroups = self.subgroup_sizes();
        // wgpu would panic on one that is checked.
        if variant.level == Level::Coop && !self.runs_coop() {
            return Err(GpuError::NoCoop { kernel, adapter, level, subgroups, checks });
        }
        let sized = needed.contains(&subgroups.0) && needed.contains(&subgroups.1);
        if variant.level >= Level::Subgroup && !(level >= Level::Subgroup && sized) {
            let (min, max) = (*needed.start(), *needed.end());
            return Err(GpuError::NoSubgroups { kernel, min, max, adapter, level, subgroups });
        }
        Ok(())
    }

    fn layout(&self, params_bytes: usize, bindings: &[Access]) -> wgpu::BindGroupLayout {
        let uniform = wgpu::BindingType::Buffer {
            ty: wgpu::BufferBindingType::Uniform,
            has_dynamic_offset: true,
            min_binding_size: wgpu::BufferSize::new(params_bytes as u64),
        };
        let storage = bindings.iter().map(|access| wgpu::BindingType::Buffer {
            ty: wgpu::BufferBindingType::Storage { read_only: *access == Access::Read },
            has_dynamic_offset: false,
            min_binding_size: None,
        });
        let entries: Vec<_> = std::iter::once(uniform)
            .chain(storage)
            .zip(0..)
            .map(|(ty, binding)| wgpu::BindGroupLayoutEntry {
                binding,
                visibility: wgpu::ShaderStages::COMPUTE,
                ty,
                count: None,
            })
            .collect();
        self.device
            .create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor { label: None, entries: &entries })
    }

    fn module(&self, label: &str, wgsl: String) -> wgpu::ShaderModule {
        let descriptor = wgpu::ShaderModuleDescriptor {
            label: Some(label),
            source: wgpu::ShaderSource::Wgsl(wgsl.into()),
        };
        match self.checks {
            Checks::On => self.device.create_shader_module(descriptor),
            Checks::Off => trusted(&self.device, descriptor),
        }
    }
}

/// The level that the text of a kernel needs, which its variant must state.
fn level_of(wgsl: &str) -> Level {
    let code = || wgsl.lines().map(|line| line.split("//").next().unwrap_or_default());
    let mut names = code().flat_map(|code| code.split("subgroup").skip(1));
    if code().any(|line| line == "enable wgpu_cooperative_matrix;") {
        Level::Coop
    } else if names.any(|rest| rest.starts_with(|next: char| next.is_ascii_uppercase())) {
        Level::Subgroup
    } else {
        Level::Baseline
    }
}

/// A module without run-time checks.
#[expect(unsafe_code, reason = "the one audited place: kernels of this workspace as trusted modules")]
fn trusted(device: &wgpu::Device, descriptor: wgpu::ShaderModuleDescriptor<'_>) -> wgpu::ShaderModule {
    // SAFETY: every kernel's loops are bounded by its parameters. Indices come from the host, where `check` of the
    // kernel's module and, for every step, the decoder validate them; or from other kernels, which keep them inside
    // their buffers whatever the scores are: the hostile cases of the self-test show it for NaN, infinities, ties and
    // arbitrary bits, without checks and with words round every buffer that must stay as they are. All kernels run in
    // the tests with all checks on as well.
    unsafe { device.create_shader_module_trusted(descriptor, wgpu::ShaderRuntimeChecks::unchecked()) }
}

/// The token that cooperative matrices ask for.
#[expect(unsafe_code, reason = "wgpu asks for it by an unsafe constructor")]
pub(super) fn experimental(wanted: bool) -> wgpu::ExperimentalFeatures {
    if wanted {
        // SAFETY: the only experimental feature requested is cooperative matrices, whose loads and stores stay
        // inside arrays that the kernels size themselves; its results are tested against the CPU references.
        unsafe { wgpu::ExperimentalFeatures::enabled() }
    } else {
        wgpu::ExperimentalFeatures::disabled()
    }
}
