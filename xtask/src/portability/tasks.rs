//! Every device with every kernel, on all processors.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::{env, thread};

use anyhow::{Context, Result};
use indicatif::ProgressBar;

use super::DeviceKernels;
use super::choice::{self, Target};
use super::devices::{Compiler, Device, Driver, Shim};
use super::fetch::{self, LIBRARIES, Root};
use super::report::{Answer, KernelRow, Offer};
use super::texts::{Text, Texts};
use super::worker::{Job, Worker};

/// Number of kernels per task. It is small, so that all processors stay busy to the end.
const TASK: usize = 40;

/// Devices whose compilers could not be fetched, with reasons.
type Missing = Vec<(&'static Device, String)>;

/// A function that compiles a kernel.
type Compile<'a> = Box<dyn FnMut(&Text) -> Result<Answer> + 'a>;

/// A device with a compiler that runs.
struct Ready<'a> {
    device: &'static Device,
    tool: Tool,
    offer: Option<Offer>,
    /// The kernels that the engine would choose on the device.
    chosen: Vec<&'a Text>,
}

/// Compiles `texts` for `devices`.
///
/// # Errors
/// If a compiler that ran does not run any more.
pub(super) fn run(devices: &[&'static Device], texts: &Texts) -> Result<(Vec<DeviceKernels>, Missing)> {
    let (mut ready, mut missing) = (Vec::new(), Vec::new());
    for device in devices {
        match Ready::new(device, texts) {
            Ok(device) => ready.push(device),
            Err(reason) => missing.push((*device, format!("{reason:#}"))),
        }
    }
    let tasks = ready
        .iter()
        .enumerate()
        .flat_map(|(at, ready)| ready.chosen.chunks(TASK).map(move |part| (at, part)));
    let tasks: Vec<_> = tasks.collect();
    let bar = ProgressBar::new(tasks.len() as u64);
    let open = Mutex::new(tasks.into_iter());
    let done = Mutex::new(HashMap::<usize, Vec<KernelRow>>::new());
    let next = || open.lock().expect("no holder of this lock panics").next();
    let work = || -> Result<()> {
        while let Some((at, part)) = next() {
            let rows = ready[at].compile(part).with_context(|| ready[at].device.id)?;
            done.lock().expect("no holder of this lock panics").entry(at).or_default().extend(rows);
            bar.inc(1);
        }
        Ok(())
    };
    thread::scope(|scope| {
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        running.into_iter().try_for_each(|thread| thread.join().expect("a task does not panic"))
    })?;
    bar.finish_and_clear();
    let mut done = done.into_inner().expect("all threads have ended");
    let outcome = |(at, ready): (usize, Ready<'_>)| {
        let Ready { device, tool, offer, .. } = ready;
        let mut rows = done.remove(&at).unwrap_or_default();
        rows.sort_by(|a, b| a.kernel.cmp(&b.kernel));
        let compiler = offer.as_ref().map_or_else(|| tool.version(), |offer| offer.driver.clone());
        DeviceKernels { device, offer, compiler, rows }
    };
    Ok((ready.into_iter().enumerate().map(outcome).collect(), missing))
}

impl<'a> Ready<'a> {
    /// Fetches the compiler, and asks a driver for its device.
    fn new(device: &'static Device, texts: &'a Texts) -> Result<Self> {
        let tool = Tool::fetch(&device.compiler)?;
        let offer = match &tool {
            Tool::Vulkan(vulkan) => {
                let offer = Worker::start(|| vulkan.command())?.offer;
                Some(offer.context("the driver tells no device")?)
            }
            _ => None,
        };
        let is_chosen = |text: &&Text| match (&offer, &tool) {
            (Some(offer), _) => choice::chooses(offer, &text.named.variant, &text.demand),
            (None, Tool::SpirvVal { .. }) => true,
            (None, _) => text.is_standard(),
        };
        let chosen = texts.all.iter().filter(is_chosen).collect();
        Ok(Self { device, tool, offer, chosen })
    }

    fn compile(&self, texts: &[&Text]) -> Result<Vec<KernelRow>> {
        let mut compile = self.tool.compiler(self.offer.as_ref())?;
        let row = |text: &&Text| {
            Ok(KernelRow::new(self.device.id, &text.kernel, text.demand.workgroup_bytes, compile(text)?))
        };
        texts.iter().map(row).collect()
    }
}

/// A compiler that was fetched.
enum Tool {
    /// A driver.
    Vulkan(Vulkan),
    /// DXC: its library.
    Dxc(PathBuf),
    /// spirv-val: its program, and the libraries that it runs with.
    SpirvVal { program: PathBuf, libraries: PathBuf },
    /// tint: its program.
    Tint(PathBuf),
}

/// A driver that was fetched: its library, the libraries that it runs with, and its shim.
struct Vulkan {
    driver: &'static Driver,
    library: PathBuf,
    libraries: PathBuf,
    shim: Option<PathBuf>,
}

impl Vulkan {
    fn fetch(driver: &'static Driver) -> Result<Self> {
        let libraries = driver.root.fetch()?.join(LIBRARIES);
        let shim = match driver.shim {
            None => None,
            Some(Shim::Packed(name)) => Some(libraries.join(name)),
            Some(Shim::Intel) => Some(fetch::intel::shim()?),
        };
        Ok(Self { driver, library: libraries.join(driver.library), libraries, shim })
    }

    /// This program as a process that compiles with the driver.
    fn command(&self) -> Result<Command> {
        let mut command = under(&self.libraries, self.shim.as_deref(), &env::current_exe()?);
        command.arg("portability-worker").arg(&self.library);
        command.envs(self.driver.variable);
        // Another run must not answer in place of the compiler.
        command.env("MESA_SHADER_CACHE_DISABLE", "true");
        Ok(command)
    }
}

impl Tool {
    fn fetch(compiler: &'static Compiler) -> Result<Self> {
        Ok(match compiler {
            Compiler::Vulkan(driver) => Self::Vulkan(Vulkan::fetch(driver)?),
            Compiler::Dxc => Self::Dxc(fetch::dxc()?),
            Compiler::SpirvVal => {
                let root = Root::Mesa26.fetch()?;
                Self::SpirvVal { program: root.join("usr/bin/spirv-val"), libraries: root.join(LIBRARIES) }
            }
            Compiler::Tint => Self::Tint(fetch::program("tint")?),
        })
    }

    /// A function that compiles one kernel after the other.
    fn compiler(&self, offer: Option<&Offer>) -> Result<Compile<'_>> {
        Ok(match self {
            Self::Vulkan(vulkan) => {
                let target = offer.map_or(Target::ANY, Target::of);
                let mut worker = Worker::start(|| vulkan.command())?;
                Box::new(move |text| {
                    let file = text.spirv_for(target)?;
                    worker.compile(&job(text, file, text.named.variant.kernel.name))
                })
            }
            Self::Dxc(library) => {
                let mut worker = Worker::start(|| dxc_command(library))?;
                Box::new(move |text| {
                    worker.compile(&job(text, text.hlsl(), text.hlsl_entry.as_deref().unwrap_or_default()))
                })
            }
            Self::SpirvVal { program, libraries } => Box::new(move |text| {
                let mut command = under(libraries, None, program);
                check(command.args(["--target-env", "vulkan1.3"]).arg(text.spirv()))
            }),
            Self::Tint(program) => {
                Box::new(move |text| check(Command::new(program).args(["--format", "wgsl"]).arg(text.wgsl())))
            }
        })
    }

    /// Version of a compiler that belongs to no device.
    fn version(&self) -> String {
        match self {
            Self::Vulkan { .. } => String::new(),
            Self::Dxc(_) => fetch::DXC.0.replace("==", " "),
            Self::SpirvVal { program, libraries } => {
                name_and_version(under(libraries, None, program).arg("--version"))
            }
            Self::Tint(_) => "tint".into(),
        }
    }
}

fn job(text: &Text, file: PathBuf, entry: &str) -> Job {
    let storage = u32::try_from(text.named.variant.bindings.len()).expect("few buffers");
    Job { file, entry: entry.into(), storage }
}

fn dxc_command(library: &Path) -> Result<Command> {
    let mut command = Command::new(env::current_exe()?);
    command.args(["portability-worker", "--dxc"]).arg(library);
    Ok(command)
}

/// A program that runs with other libraries than this machine's, including the C library.
fn under(libraries: &Path, preload: Option<&Path>, program: &Path) -> Command {
    let mut command = Command::new(libraries.join("ld-linux-x86-64.so.2"));
    command.arg("--library-path").arg(libraries);
    if let Some(shim) = preload {
        command.arg("--preload").arg(shim);
    }
    command.arg(program);
    command
}

/// The answer of a checker that is a program.
fn check(command: &mut Command) -> Result<Answer> {
    let program = command.get_program().display().to_string();
    let done = command.output().with_context(|| format!("{program} cannot be run"))?;
    let text = String::from_utf8_lossy(&[done.stderr, done.stdout].concat()).into_owned();
    Ok(if done.status.success() { Ok(Vec::new()) } else { Err(text.trim().to_owned()) })
}

fn name_and_version(command: &mut Command) -> String {
    let text = command.output().map(|done| done.stdout).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    // Then come a hash and a date.
    text.split_whitespace().take(2).collect::<Vec<_>>().join(" ")
}
