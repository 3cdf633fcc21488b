//! Compiled kernels, cached by variant. It is the only place with `unsafe`: for modules without checks, and for
//! compiled forms from drivers.

use super::compiler::Counts;
use super::{Checks, Gpu, GpuError};
use crate::profile::Matrices;
use crate::verdicts::Wrong;
use crate::{Access, Level, Variant};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// A kernel that is compiled, or will be by the time that it runs.
#[derive(Debug)]
pub struct Pipeline {
    /// Input of the compilation, until a thread begins it.
    source: Mutex<Option<KernelText>>,
    /// Result of the compilation: the kernel, or the compiler's message.
    raw: OnceLock<Result<wgpu::ComputePipeline, String>>,
    /// Whether a submission runs the kernel.
    runs: AtomicBool,
    pub(super) layout: wgpu::BindGroupLayout,
    pub(super) layout_id: u64,
    pub(super) variant: Variant,
}

impl Pipeline {
    /// The variant from which the pipeline was compiled.
    #[must_use]
    pub fn variant(&self) -> &Variant {
        &self.variant
    }

    /// Waits until the pipeline is compiled.
    ///
    /// # Errors
    /// [`GpuError::Compile`].
    pub fn wait(&self) -> Result<(), GpuError> {
        self.raw().map(drop)
    }

    pub(super) fn raw(&self) -> Result<&wgpu::ComputePipeline, GpuError> {
        if self.raw.get().is_none() {
            self.compile();
        }
        let compile = |message: &String| GpuError::Compile {
            kernel: self.variant.kernel.name,
            message: message.clone(),
        };
        self.raw.wait().as_ref().map_err(compile)
    }

    /// Compiles the pipeline, unless a thread has begun to.
    fn compile(&self) {
        let source = self.source.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(source) = source else { return };
        let made = catch_unwind(AssertUnwindSafe(|| source.compile(self)));
        let _ = self.raw.set(made.unwrap_or_else(|_| Err("the compiler panicked".into())));
        source.counts.iter().for_each(|counts| counts.finish());
    }

    /// Returns whether the kernel runs for the first time, and records that it has run.
    pub(super) fn runs_first(&self) -> bool {
        !self.runs.swap(true, Ordering::Relaxed)
    }
}

/// Key of a bind group: layout, parameter buffer, then `(buffer id, offset)` of each binding.
#[derive(PartialEq, Eq, Hash, Debug)]
pub(super) struct BindGroupKey(pub(super) SmallVec<[u64; 18]>);

#[derive(Debug, Default)]
pub(super) struct PipelineCache {
    pipelines: FxHashMap<Variant, Arc<Pipeline>>,
    /// Layouts by interface: kernels with equal interfaces share a layout, and with it bind groups.
    layouts: FxHashMap<(usize, Vec<Access>), (u64, wgpu::BindGroupLayout)>,
}

static NEXT_LAYOUT: AtomicU64 = AtomicU64::new(0);

impl Gpu {
    /// Returns the pipeline of a variant, which is compiled only once. A thread of the device compiles it, possibly
    /// concurrently with others; the first user that waits for the pipeline compiles it if no thread has begun. A
    /// software driver has no such threads: four of ten kernels that engines request there never run.
    ///
    /// # Errors
    /// [`GpuError::Compose`], [`GpuError::NoCoop`], [`GpuError::NoSubgroups`] and [`GpuError::Wrong`], with the kernel's name.
    /// That a driver does not take it, [`Pipeline::wait`] says, and what encodes it.
    pub fn pipeline(&self, variant: &Variant) -> Result<Arc<Pipeline>, GpuError> {
        if let Some(pipeline) = self.cached().pipelines.get(variant) {
            return Ok(Arc::clone(pipeline));
        }
        let pipeline = Arc::new(self.begin(variant)?);
        // Another thread may have been faster with the same one.
        let mut cached = self.cached();
        if let Some(other) = cached.pipelines.get(variant) {
            return Ok(Arc::clone(other));
        }
        cached.pipelines.insert(variant.clone(), Arc::clone(&pipeline));
        drop(cached);
        if !self.is_cpu() {
            self.counts.ask();
            let soon = Arc::clone(&pipeline);
            self.compiler.add(move || soon.compile());
        }
        Ok(pipeline)
    }

    /// Number of kernels requested so far, whether they have run or not.
    #[must_use]
    pub fn num_kernels(&self) -> usize {
        self.cached().pipelines.len()
    }

    /// Returns the names of the kernels that were requested so far, ascending.
    #[must_use]
    pub fn kernels(&self) -> Vec<&'static str> {
        let mut names: Vec<_> = self.cached().pipelines.keys().map(|variant| variant.kernel.name).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    fn cached(&self) -> MutexGuard<'_, PipelineCache> {
        self.pipelines.lock().expect("no holder of this lock panics")
    }

    /// Creates the pipeline of a variant, not yet compiled.
    fn begin(&self, variant: &Variant) -> Result<Pipeline, GpuError> {
        self.made.fetch_add(1, Ordering::Relaxed);
        let kernel = variant.kernel;
        let wgsl = variant.wgsl_of(self.text, self.profile.matrices.unwrap_or(Matrices::NVIDIA))?;
        debug_assert_eq!(variant.level, level_of(&wgsl), "level of kernel {}", kernel.name);
        self.check_level(variant)?;
        let accesses: Vec<Access> = variant.bindings.iter().map(|binding| binding.access).collect();
        let params_bytes = kernel.params.bytes;
        let new_layout =
            || (NEXT_LAYOUT.fetch_add(1, Ordering::Relaxed), self.layout(params_bytes, &accesses));
        let key = (params_bytes, accesses.clone());
        let (layout_id, layout) = self.cached().layouts.entry(key).or_insert_with(new_layout).clone();
        let cache = self.kept.as_ref().map(|kept| kept.cache.clone());
        // A software driver makes machine code when a kernel first runs: submissions count that.
        let counts = (!self.is_cpu()).then(|| Arc::clone(&self.counts));
        let source = KernelText { device: self.device.clone(), wgsl, checks: self.checks, cache, counts };
        Ok(Pipeline {
            source: Mutex::new(Some(source)),
            raw: OnceLock::new(),
            runs: AtomicBool::new(false),
            layout,
            layout_id,
            variant: variant.clone(),
        })
    }

    /// Refuses a variant that the driver computes incorrectly, whose level does not run here, or that relies on
    /// subgroups of another size and so would compile and be wrong.
    fn check_level(&self, variant: &Variant) -> Result<(), GpuError> {
        let kernel = variant.kernel.name;
        let (adapter, level, checks) = (self.info.name.clone(), self.level(), self.checks);
        let [smallest, largest] = self.profile.subgroups;
        let subgroups = (smallest, largest);
        if let Some(Wrong { variant, mode }) = self.profile.verdicts.against(variant) {
            return Err(GpuError::Wrong { variant, adapter, driver: self.info.driver_info.clone(), mode });
        }
        // wgpu would panic on one that is checked.
        if variant.level == Level::Coop && !self.runs_coop() {
            return Err(GpuError::NoCoop { kernel, adapter, level, subgroups, checks });
        }
        if !self.profile.runs(variant) {
            let (min, max) = (*variant.subgroups.start(), *variant.subgroups.end());
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
        let buffer = |ty| wgpu::BindingType::Buffer { ty, has_dynamic_offset: false, min_binding_size: None };
        let storage = bindings.iter().map(|access| match access {
            Access::Read => buffer(wgpu::BufferBindingType::Storage { read_only: true }),
            Access::Write => buffer(wgpu::BufferBindingType::Storage { read_only: false }),
            Access::Window => buffer(wgpu::BufferBindingType::Uniform),
            Access::Image => wgpu::BindingType::StorageTexture {
                access: wgpu::StorageTextureAccess::ReadOnly,
                format: wgpu::TextureFormat::Rgba32Uint,
                view_dimension: wgpu::TextureViewDimension::D2,
            },
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
}

/// A kernel's text, and all else that a thread needs to compile it.
#[derive(Debug)]
struct KernelText {
    device: wgpu::Device,
    wgsl: String,
    checks: Checks,
    cache: Option<wgpu::PipelineCache>,
    /// Counters of the device; `None` if this compilation does not count.
    counts: Option<Arc<Counts>>,
}

impl KernelText {
    fn compile(&self, pipeline: &Pipeline) -> Result<wgpu::ComputePipeline, String> {
        let Self { device, wgsl, checks, cache, .. } = self;
        let Pipeline { layout, variant, .. } = pipeline;
        let name = variant.kernel.name;
        // Scopes are those of a thread.
        let scope = device.push_error_scope(wgpu::ErrorFilter::Validation);
        let internal = device.push_error_scope(wgpu::ErrorFilter::Internal);
        let descriptor = wgpu::ShaderModuleDescriptor {
            label: Some(name),
            source: wgpu::ShaderSource::Wgsl(wgsl.as_str().into()),
        };
        let module = match checks {
            Checks::On => device.create_shader_module(descriptor),
            Checks::Off => trusted(device, descriptor),
        };
        let pipeline_layout = device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            label: Some(name),
            bind_group_layouts: &[Some(layout)],
            immediate_size: 0,
        });
        let constants: Vec<(&str, f64)> =
            variant.constants.iter().map(|(name, value)| (*name, f64::from(*value))).collect();
        let raw = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: Some(name),
            layout: Some(&pipeline_layout),
            module: &module,
            entry_point: Some(name),
            compilation_options: wgpu::PipelineCompilationOptions {
                constants: &constants,
                // Every kernel writes what it reads; clearing would cost a pass over workgroup memory.
                zero_initialize_workgroup_memory: false,
            },
            cache: cache.as_ref(),
        });
        let failed = [pollster::block_on(internal.pop()), pollster::block_on(scope.pop())];
        match failed.into_iter().flatten().next() {
            Some(error) => Err(error.to_string()),
            None => Ok(raw),
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

/// Creates a shader module without run-time checks.
#[expect(unsafe_code, reason = "the one audited place: kernels of this workspace as trusted modules")]
fn trusted(device: &wgpu::Device, descriptor: wgpu::ShaderModuleDescriptor<'_>) -> wgpu::ShaderModule {
    // SAFETY: every kernel's loops are bounded by its parameters. Indices come from three places.
    // Block tables come from a scheduler: `KvPool::check_blocks` of the decoder compares each entry with the size of the pool
    // in every step, copy, read and write of blocks, and `Gpu::attend` the tables and rows of its caller. Blocks to digest and
    // entries to hash are compared before each dispatch (`block_digest::check`, `hash_codes::check`), spans of XAttention and
    // FlashPrefill by their `check`. Token ids are compared with the vocabulary when they enter a batch, tables of experts with
    // the number of experts when they are loaded. Lists of blocks that a policy's own code makes ascend (`Selection::push_row`)
    // and end inside the sequence (`SparseOptions::select`).
    // Rows, tiles and lists are made by the decoder itself, out of those tables and of lengths that it counts; whoever
    // dispatches kernels with rows of his own under `Checks::Off` answers for them.
    // Lists and slots that kernels leave for kernels stay inside their buffers whatever the scores are: the hostile cases of
    // the self-test show it for NaN, infinities, ties and arbitrary bits, without checks and with words round every buffer
    // that must stay as they are. All kernels run in the tests with all checks on as well.
    unsafe { device.create_shader_module_trusted(descriptor, wgpu::ShaderRuntimeChecks::unchecked()) }
}

/// Creates a cache of compiled kernels with the contents of an earlier one, or an empty one if wgpu finds the
/// contents to be of another device or driver.
#[expect(unsafe_code, reason = "drivers trust what they once gave out")]
pub(super) fn kept(device: &wgpu::Device, data: Option<&[u8]>) -> wgpu::PipelineCache {
    let descriptor = wgpu::PipelineCacheDescriptor { label: Some("kernels"), data, fallback: true };
    // SAFETY: the data are what `PipelineCache::get_data` returned for this adapter, driver and version of the program: a
    // checksum over all of that was compared. They lie in the user's own cache folder.
    unsafe { device.create_pipeline_cache(&descriptor) }
}

/// Returns the token with which wgpu enables cooperative matrices.
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
