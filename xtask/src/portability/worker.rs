//! A process of its own that compiles: drivers may crash or hang, and some need another C library than this program.
//!
//! It is this program again. It answers with the device's properties, and then each job, a line of JSON, with a line of JSON.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use super::dxc::Dxc;
use super::report::{Answer, Offer};
use super::vulkan::Device;
use crate::cli::PortabilityWorkerArgs;

/// Time that a compiler has for one kernel; the slowest of today takes a tenth of it.
const PATIENCE: Duration = Duration::from_secs(180);

/// A module to compile.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Job {
    /// File with its text or words.
    pub(super) file: PathBuf,
    /// Entry point of the shader.
    pub(super) entry: String,
    /// Number of storage buffers that the kernel binds.
    pub(super) storage: u32,
}

/// Runs the process: opens the compiler, and answers jobs from standard input until it ends.
///
/// # Errors
/// If the compiler does not open, or the other process is gone.
pub fn run(args: &PortabilityWorkerArgs) -> Result<()> {
    if args.dxc {
        let dxc = Dxc::open(&args.library)?;
        say(&None::<Offer>)?;
        return answer(|job| dxc.compile(&fs::read_to_string(&job.file)?, &job.entry).map(|()| Vec::new()));
    }
    let device = Device::open(&args.library)?;
    say(&Some(&device.offer))?;
    answer(|job| {
        let bytes = fs::read(&job.file)?;
        let words =
            bytes.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]));
        device.compile(&words.collect::<Vec<_>>(), &job.entry, job.storage)
    })
}

fn answer(mut compile: impl FnMut(&Job) -> Result<Vec<super::report::Executable>>) -> Result<()> {
    for line in io::stdin().lock().lines() {
        let job: Job = serde_json::from_str(&line?)?;
        say(&compile(&job).map_err(|error| format!("{error:#}")))?;
    }
    Ok(())
}

fn say(value: &impl Serialize) -> Result<()> {
    let mut out = io::stdout().lock();
    serde_json::to_writer(&mut out, value)?;
    writeln!(out)?;
    Ok(out.flush()?)
}

/// The process that compiles, which is started anew after a crash.
pub(super) struct Worker<F> {
    start: F,
    running: Option<Running>,
    /// Properties of the worker's device, if it has one.
    pub(super) offer: Option<Offer>,
}

struct Running {
    child: Child,
    jobs: Option<ChildStdin>,
    lines: Receiver<io::Result<String>>,
    folder: TempDir,
}

impl<F: Fn() -> Result<Command>> Worker<F> {
    /// Starts the process that `start` describes.
    ///
    /// # Errors
    /// If it cannot be started or its compiler does not open.
    pub(super) fn start(start: F) -> Result<Self> {
        let (running, offer) = Running::start(start()?)?;
        Ok(Self { start, running: Some(running), offer })
    }

    /// The compiler's answer about one module; a crash and a compiler that hangs refuse it too.
    ///
    /// # Errors
    /// If the process cannot be started anew after a crash.
    pub(super) fn compile(&mut self, job: &Job) -> Result<Answer> {
        let mut running = match self.running.take() {
            Some(running) => running,
            None => Running::start((self.start)()?)?.0,
        };
        match running.ask(job) {
            Ok(answer) => {
                self.running = Some(running);
                Ok(answer)
            }
            Err(error) => Ok(Err(format!("the compiler {error:#}"))),
        }
    }
}

impl Running {
    fn start(mut command: Command) -> Result<(Self, Option<Offer>)> {
        let folder = tempfile::tempdir()?;
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(File::create(folder.path().join(ERRORS))?)
            .spawn()
            .with_context(|| format!("{} cannot be run", command.get_program().display()))?;
        let output = BufReader::new(child.stdout.take().expect("a pipe was asked for"));
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || output.lines().try_for_each(|line| sender.send(line)));
        let jobs = child.stdin.take();
        let mut running = Self { child, jobs, lines, folder };
        let offer = running.hear().context("the process that compiles did not start")?;
        Ok((running, offer))
    }

    fn ask(&mut self, job: &Job) -> Result<Answer> {
        let jobs = self.jobs.as_mut().expect("they end with the process");
        // A process that is gone is told by its answer, which does not come.
        let _ = writeln!(jobs, "{}", serde_json::to_string(job)?);
        self.hear()
    }

    /// Waits for the next line of JSON from the process. Skips other lines, which drivers print.
    fn hear<T: DeserializeOwned>(&mut self) -> Result<T> {
        loop {
            match self.lines.recv_timeout(PATIENCE) {
                Ok(line) => {
                    if let Ok(value) = serde_json::from_str(&line?) {
                        return Ok(value);
                    }
                }
                Err(RecvTimeoutError::Timeout) => bail!("took more than {} s", PATIENCE.as_secs()),
                Err(RecvTimeoutError::Disconnected) => {
                    let status = self.child.wait()?;
                    bail!("ended with {status}: {}", last_words(self.folder.path()))
                }
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Its input ends, and with it the process; one that hangs does not hear that.
        self.jobs = None;
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const ERRORS: &str = "errors";

/// Last lines that a process wrote to its standard error.
fn last_words(folder: &Path) -> String {
    let bytes = fs::read(folder.join(ERRORS)).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<_> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(3)..].join("; ")
}
