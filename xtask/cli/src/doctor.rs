//! `pagoda doctor`: the hardware and software of this machine, the kernels of its adapters, and how to install what is
//! missing.

mod adapter;
mod checkpoint;
mod modes;

pub use adapter::{Adapter, Device, Limits, Products};
pub use checkpoint::{CheckpointReport, KvMemory, ModeOf};
pub use modes::Refused;

use std::fmt;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use attn_kernels::gpu::{self, Checks, Gpu, GpuOptions};
use pagoda::fetch::ModelCache;
use pagoda::tuning;
use pagoda::verdicts::Verdicts;
use serde::Serialize;

use crate::cli::DoctorArgs;
use crate::default_model;
use crate::references;
use crate::report;
use crate::self_test::{self, Random};
use crate::setup::{self, Found, Need, Platform, REQUIREMENTS, Remedy, SetupPlan};

/// Prints the findings.
///
/// # Errors
///
/// When something is missing that the commands need, or no adapter can be opened.
pub fn run(args: &DoctorArgs) -> Result<()> {
    if args.install {
        setup::install(DefaultModel::of_this_user().needs())?;
    }
    let mut report = Report::of_this_machine();
    if args.self_test {
        let random = args.random.map(|specs| Random::new(specs, args.seed));
        report.self_test(args.device.as_deref(), random)?;
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

/// Findings about the machine.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Platform, Vulkan and Python.
    #[serde(flatten)]
    pub found: Found,
    /// The default model.
    pub model: DefaultModel,
    /// GPU adapters, best first.
    pub adapters: Vec<Adapter>,
    /// Modes that do not work with some form of attention; all other modes work.
    pub modes: Vec<Refused>,
    /// Random cases of this run's self-test.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub random: Option<Random>,
    /// The model of `--model`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointReport>,
    /// Missing requirements, and the ways to install them.
    #[serde(flatten)]
    pub plan: SetupPlan,
}

/// The default model, and whether this machine has it.
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

    /// Returns the requirements of running the model.
    fn needs(&self) -> &'static [Need] {
        if self.cached { &[Need::Gpu] } else { &[Need::Gpu, Need::DefaultModel] }
    }
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
        Self { found, model, adapters, modes: Refused::all(), random: None, checkpoint: None, plan }
    }

    /// Runs every kernel on `device`, or on all adapters that open. Also times matrix products there, and records the
    /// failures and the kernel choices that follow from the times.
    fn self_test(&mut self, device: Option<&str>, random: Option<Random>) -> Result<()> {
        self.random = random;
        if let Some(random) = random {
            // A driver may end the process.
            eprintln!("self-test: {random}");
        }
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
            let software = gpu.profile().software;
            let tested = self_test::run(&options, gpu, random)?;
            let verdict = self_test::verdict(&tested.rows);
            verdicts.put(&tested.info, verdict.clone());
            let measured = (!software).then(|| tuning::measure(&options, Some(&verdict)));
            if let Some(measured) = &measured {
                verdicts.put_tuning(&tested.info, measured.kept.clone());
            }
            let of = |adapter: &&mut Adapter| adapter.is(&tested.info);
            if let Some(adapter) = self.adapters.iter_mut().find(of) {
                (adapter.verdict, adapter.self_test) = (Some(verdict), tested.rows);
                measured.into_iter().for_each(|measured| adapter.measured(measured));
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

/// Width of the column of labels.
const LABEL: usize = 12;

fn line(f: &mut fmt::Formatter<'_>, label: &str, text: impl fmt::Display) -> fmt::Result {
    writeln!(f, "{label:LABEL$}{text}")
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { found, model, adapters, modes: refused, random, checkpoint, plan } = self;
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
        if let Some(random) = random {
            line(f, "self-test", format_args!("specs at random: {random}"))?;
        }
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
            adapter::write(f, index, adapter)?;
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

fn write_plan(f: &mut fmt::Formatter<'_>, plan: &SetupPlan) -> fmt::Result {
    if plan.missing.is_empty() {
        return line(f, "missing", "nothing");
    }
    for requirement in REQUIREMENTS.iter().filter(|requirement| plan.missing.contains(&requirement.name)) {
        line(f, "missing", format_args!("{}: {}", requirement.name, requirement.reason))?;
    }
    match &plan.remedy {
        Remedy::Nothing => Ok(()),
        Remedy::Apt(command) | Remedy::Print(command) => line(f, "to install", command),
        Remedy::Advise(advice) => line(f, "to install", advice),
    }
}

#[cfg(test)]
mod tests;
