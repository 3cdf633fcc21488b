//! `cargo xtask doctor`: what this machine has, which kernels its adapters get, what is missing and how to install it.

mod checkpoint;
mod modes;

pub use checkpoint::{CheckpointReport, KvMemory, ModeOf};
pub use modes::Refused;

use std::fmt;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use attn_kernels::gpu::{self, Checks, Gpu, GpuOptions, wgpu};
use models::ModelCache;
use pagoda::verdicts::{Verdict, Verdicts};
use serde::Serialize;

use crate::cli::DoctorArgs;
use crate::default_model;
use crate::references::{self, Compared};
use crate::report;
use crate::self_test::{self, Tested};
use crate::setup::{self, Found, Need, Plan, Platform, REQUIREMENTS, Remedy};

/// Prints what was found.
///
/// # Errors
///
/// When something is missing that the commands need, or no adapter can be opened.
pub fn run(args: &DoctorArgs) -> Result<()> {
    let mut report = Report::of_this_machine();
    if args.self_test {
        report.self_test(args.device.as_deref())?;
    }
    if let Some(folder) = &args.models {
        let folder = folder.clone().map_or_else(references::tiny, Ok)?;
        report.compare_models(&folder, args.device.as_deref())?;
    }
    if let Some(model) = &args.model {
        let shares =
            report.adapters.iter().find(|adapter| adapter.usable()).is_some_and(Adapter::shares_memory);
        report.checkpoint = Some(CheckpointReport::of(model, args.quantize, args.memory, shares)?);
    }
    let mut out = io::stdout().lock();
    if args.json {
        report::json_line(&mut out, &report)?;
    } else {
        write!(out, "{report}")?;
    }
    // What only tests need is reported, but is no failure.
    let missing = setup::plan(&report.found, report.model.needs()).missing;
    ensure!(missing.is_empty(), "missing: {}", missing.join(", "));
    ensure!(report.adapters.iter().any(Adapter::usable), "no GPU adapter can be opened");
    let wrong: usize = report.adapters.iter().map(|adapter| self_test::wrong(&adapter.self_test)).sum();
    ensure!(wrong == 0, "{wrong} kernel variants are wrong: the engine keeps off their levels");
    let models = report.adapters.iter().flat_map(|adapter| &adapter.models);
    let wrong = models.filter(|model| !model.is_right()).count();
    ensure!(wrong == 0, "{wrong} models differ from their references");
    Ok(())
}

/// Findings about the machine, and what it lacks.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Platform, Vulkan and Python.
    #[serde(flatten)]
    pub found: Found,
    /// The default model.
    pub model: DefaultModel,
    /// GPU adapters, best first.
    pub adapters: Vec<Adapter>,
    /// Modes that each form of attention lacks something for; the others work.
    pub modes: Vec<Refused>,
    /// The model of `--model`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointReport>,
    /// Missing requirements, and how to install them.
    #[serde(flatten)]
    pub plan: Plan,
}

/// The default model, as far as this machine has it.
#[derive(Debug, Serialize)]
pub struct DefaultModel {
    /// Path of the model, whether or not it was fetched; none if the user has no cache folder.
    pub path: Option<PathBuf>,
    /// Whether the file exists.
    pub cached: bool,
}

impl DefaultModel {
    fn of_this_user() -> Self {
        let cache = ModelCache::user().ok();
        let cached = cache.as_ref().is_some_and(|cache| cache.cached(&default_model::PACKAGE).is_some());
        Self { path: cache.map(|cache| cache.path(&default_model::PACKAGE)), cached }
    }

    /// Returns the requirements of running it.
    fn needs(&self) -> &'static [Need] {
        if self.cached { &[Need::Gpu] } else { &[Need::Gpu, Need::DefaultModel] }
    }
}

/// A GPU adapter; `--device` takes its index or part of its name.
#[derive(Debug, Serialize)]
pub struct Adapter {
    /// Its name.
    pub name: String,
    /// Vulkan, Metal or DX12.
    pub backend: String,
    /// Discrete or integrated GPU, CPU, and so on.
    pub kind: String,
    /// Driver and its version.
    pub driver: String,
    /// Capabilities of the opened device.
    pub device: Option<Device>,
    /// Why it cannot be opened.
    pub fault: Option<String>,
    /// Result of the last self-test under this driver.
    pub verdict: Option<Verdict>,
    /// Results of this run's self-test, one per kernel variant.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub self_test: Vec<Tested>,
    /// Comparisons of models with their references, one per checkpoint.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub models: Vec<Compared>,
}

/// Capabilities of an opened device.
#[derive(Debug, Serialize)]
pub struct Device {
    /// The level that kernels are built for.
    pub level: &'static str,
    /// Smallest and largest subgroup size, in invocations.
    pub subgroup_sizes: [u32; 2],
    /// WebGPU features in use.
    pub features: Vec<String>,
    /// Limits that decide what fits.
    pub limits: Limits,
}

/// Limits that decide what fits on a device.
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

impl Report {
    /// Inspects this machine; opens every adapter once.
    pub fn of_this_machine() -> Self {
        let found = Found::on_this_machine(Need::ALL);
        let adapters =
            gpu::adapters().iter().enumerate().map(|(index, info)| Adapter::open(index, info)).collect();
        Self::new(found, DefaultModel::of_this_user(), adapters)
    }

    fn new(found: Found, model: DefaultModel, adapters: Vec<Adapter>) -> Self {
        let plan = setup::plan(&found, &[model.needs(), &[Need::Tests]].concat());
        Self { found, model, adapters, modes: Refused::all(), checkpoint: None, plan }
    }

    /// Runs every kernel on the adapters that open, or on `device` alone, and remembers the failures.
    fn self_test(&mut self, device: Option<&str>) -> Result<()> {
        let all: Vec<String> = (0..self.adapters.len()).map(|index| index.to_string()).collect();
        let chosen = device.map_or_else(|| all.iter().map(String::as_str).collect(), |name| vec![name]);
        let mut verdicts = Verdicts::of_this_user();
        for name in chosen {
            let options = GpuOptions::new(Checks::Off).device(Some(name.into()));
            let gpu = match Gpu::open(&options) {
                Ok(gpu) => gpu,
                // The errors of the others are already in the report.
                Err(_) if device.is_none() => continue,
                Err(error) => return Err(error.into()),
            };
            let tested = self_test::run(&options, gpu)?;
            let verdict = self_test::verdict(&tested.rows);
            verdicts.put(&tested.info, verdict.clone());
            let of = |adapter: &&mut Adapter| adapter.is(&tested.info);
            if let Some(adapter) = self.adapters.iter_mut().find(of) {
                (adapter.verdict, adapter.self_test) = (Some(verdict), tested.rows);
            }
        }
        Ok(verdicts.save()?)
    }

    /// Runs the models of `folder` on the adapters that open, or on `device` alone.
    fn compare_models(&mut self, folder: &Path, device: Option<&str>) -> Result<()> {
        if let Some(name) = device {
            let gpu = Gpu::open(&GpuOptions::new(Checks::Off).device(Some(name.into())))?;
            let of = |adapter: &&mut Adapter| adapter.is(gpu.info());
            let adapter = self.adapters.iter_mut().find(of).expect("an adapter that opens is listed");
            adapter.models = references::run(folder, name)?;
            return Ok(());
        }
        for (index, adapter) in self.adapters.iter_mut().enumerate().filter(|(_, adapter)| adapter.usable()) {
            adapter.models = references::run(folder, &index.to_string())?;
        }
        Ok(())
    }
}

impl Adapter {
    /// Whether kernels can run on this machine.
    pub fn usable(&self) -> bool {
        self.device.is_some()
    }

    /// Whether its memory is the host's.
    fn shares_memory(&self) -> bool {
        ["Cpu", "IntegratedGpu"].contains(&self.kind.as_str())
    }

    fn is(&self, info: &wgpu::AdapterInfo) -> bool {
        self.name == info.name && self.backend == info.backend.to_string()
    }

    fn open(index: usize, info: &wgpu::AdapterInfo) -> Self {
        let options = GpuOptions::new(Checks::On).device(Some(index.to_string()));
        let (device, fault) = match Gpu::open(&options) {
            Ok(gpu) => (Some(Device::of(&gpu)), None),
            Err(error) => (None, Some(format!("{:#}", anyhow::Error::from(error)))),
        };
        Self {
            name: info.name.clone(),
            backend: info.backend.to_string(),
            kind: format!("{:?}", info.device_type),
            driver: format!("{} {}", info.driver, info.driver_info).trim().to_string(),
            device,
            fault,
            verdict: Verdicts::of_this_user().get(info).cloned(),
            self_test: Vec::new(),
            models: Vec::new(),
        }
    }
}

impl Device {
    fn of(gpu: &Gpu) -> Self {
        let limits = gpu.limits();
        Self {
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

/// Width of the column of labels.
const LABEL: usize = 12;

fn line(f: &mut fmt::Formatter<'_>, label: &str, text: impl fmt::Display) -> fmt::Result {
    writeln!(f, "{label:LABEL$}{text}")
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { found, model, adapters, modes: refused, checkpoint, plan } = self;
        let platform = match found.platform {
            Platform::Debian { root: true } => "Debian or Ubuntu, as root",
            Platform::Debian { root: false } => "Debian or Ubuntu",
            Platform::OtherLinux => "neither Debian nor Ubuntu",
            Platform::MacOs => "macOS",
            Platform::Windows => "Windows",
        };
        line(f, "platform", platform)?;
        if let Some(vulkan) = &found.vulkan {
            let loader = vulkan.loader.as_ref().map_or("not found".into(), |path| path.display().to_string());
            line(f, "Vulkan", format_args!("loader {loader}"))?;
            for driver in &vulkan.drivers {
                let library = driver
                    .library
                    .as_ref()
                    .map_or("library not found".into(), |path| path.display().to_string());
                line(f, "", format_args!("driver {}: {library}", driver.manifest.display()))?;
            }
            if vulkan.answers {
                line(f, "", "an adapter answers all the same")?;
            }
            if let Some(variable) = vulkan.redirected_by {
                line(f, "", format_args!("drivers are named by {variable}"))?;
            }
        }
        match &found.python {
            Some(python) => {
                let pip = python.pip.as_deref().unwrap_or("without pip");
                line(f, "Python", format_args!("{}: {}, {pip}", python.command, python.version))?;
            }
            None => line(f, "Python", "not found")?,
        }
        let place = |path: &Option<PathBuf>| {
            path.as_ref().map_or_else(|| "not found".to_owned(), |path| path.display().to_string())
        };
        line(f, "Redis", place(&found.redis_server))?;
        line(f, "Node.js", format_args!("{}, npm {}", place(&found.node), place(&found.npm)))?;
        line(f, "Chromium", format_args!("driver {}", place(&found.chromedriver)))?;
        match model {
            DefaultModel { path: None, .. } => {
                line(f, "model", "no cache folder for this user; set PAGODA_CACHE_DIR")?;
            }
            DefaultModel { path: Some(path), cached: true } => line(f, "model", path.display())?,
            DefaultModel { path: Some(path), .. } => {
                line(f, "model", format_args!("fetched on first use, to {}", path.display()))?;
            }
        }
        for (index, adapter) in adapters.iter().enumerate() {
            write_adapter(f, index, adapter)?;
        }
        if adapters.is_empty() {
            line(f, "adapters", "none")?;
        }
        if adapters.iter().any(Adapter::usable) {
            modes::write(f, refused)?;
        }
        if let Some(checkpoint) = checkpoint {
            write!(f, "{checkpoint}")?;
        }
        write_plan(f, plan)
    }
}

fn write_adapter(f: &mut fmt::Formatter<'_>, index: usize, adapter: &Adapter) -> fmt::Result {
    let Adapter { name, backend, kind, driver, device, fault, verdict, self_test, models } = adapter;
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
    for row in self_test {
        line(f, "", row)?;
    }
    for row in models {
        line(f, "", row)?;
    }
    match verdict {
        Some(verdict) => line(f, "", verdict),
        None => line(f, "", "kernels not compared with their references yet: cargo xtask doctor --self-test"),
    }
}

fn write_plan(f: &mut fmt::Formatter<'_>, plan: &Plan) -> fmt::Result {
    if plan.missing.is_empty() {
        return line(f, "missing", "nothing");
    }
    for requirement in REQUIREMENTS.iter().filter(|requirement| plan.missing.contains(&requirement.name)) {
        line(f, "missing", format_args!("{}: {}", requirement.name, requirement.reason))?;
    }
    match &plan.remedy {
        Remedy::Nothing => Ok(()),
        Remedy::RunApt => line(f, "to install", "cargo xtask test and cargo xtask generate do it by apt-get"),
        Remedy::Print(command) => line(f, "to install", command),
        Remedy::Advise(advice) => line(f, "to install", advice),
    }
}

#[cfg(test)]
mod tests;
