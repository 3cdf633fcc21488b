//! The test programs of the workspace, two at a time, while checks that are cargo's run one after the other.
//!
//! cargo runs one after the other, and those of kernels wait for a software driver that compiles on one thread. How much two at a
//! time gain depends on the processors: where two share a core, those of models and attn-kernels end after 12 minutes in place of
//! 14 without a cache of shaders. Runners that are kept elsewhere start each test as a process of its own, which
//! opens a device and compiles its kernels anew.

use std::collections::VecDeque;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;
use std::{io, thread};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use super::{FEATURES, cargo};

/// Number of programs that run at a time.
const AT_A_TIME: usize = 2;

/// Programs that take longest, and therefore begin first: otherwise one of them would run alone at the end. The
/// programs of the engine and of `models` do not begin together, because without a cache of shaders both would
/// compile the same kernels.
const LONGEST: [&str; 6] =
    ["xtask engine", "attn-kernels it", "models it", "pagoda it", "serve http", "dense-kernels it"];

/// A message of cargo. Most kinds of messages are ignored.
#[derive(Deserialize)]
struct CargoMessage {
    reason: String,
    manifest_path: Option<PathBuf>,
    executable: Option<PathBuf>,
    profile: Option<Profile>,
    target: Option<Target>,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

#[derive(Deserialize)]
struct Target {
    name: String,
}

/// A program of tests.
#[derive(Debug, PartialEq, Eq)]
struct Program {
    name: String,
    path: PathBuf,
    /// Folder of the program's package, in which it runs.
    folder: PathBuf,
}

impl Program {
    /// The program that cargo says it has built; `None` if the line is about something else.
    fn built(line: &str) -> Result<Option<Self>> {
        let message: CargoMessage =
            serde_json::from_str(line).with_context(|| format!("message of cargo: {line}"))?;
        let tests =
            message.reason == "compiler-artifact" && message.profile.is_some_and(|profile| profile.test);
        let (Some(path), Some(mut folder), true) = (message.executable, message.manifest_path, tests) else {
            return Ok(None);
        };
        folder.pop();
        let package = folder.file_name().unwrap_or_default().display();
        let name = format!("{package} {}", message.target.map(|target| target.name).unwrap_or_default());
        Ok(Some(Self { name, path, folder }))
    }

    /// Runs the program with `variables`, and shows its output when it ends.
    fn run(&self, variables: &[(&str, String)]) -> Result<()> {
        eprintln!("running the tests of {}", self.name);
        let begin = Instant::now();
        let mut command = Command::new(&self.path);
        command.current_dir(&self.folder).envs(variables.iter().cloned()).stdin(Stdio::null());
        let done = command.output().with_context(|| format!("{} cannot be run", self.path.display()))?;
        let mut shown = io::stderr().lock();
        shown.write_all(&done.stdout)?;
        shown.write_all(&done.stderr)?;
        writeln!(shown, "{}: {}, {:.1} s", self.name, done.status, begin.elapsed().as_secs_f64())?;
        ensure!(done.status.success(), "tests of {} failed", self.name);
        Ok(())
    }
}

/// A check that runs while test programs do.
pub(crate) type Check = Box<dyn FnOnce() -> Result<()> + Send>;

/// Builds every test program, then runs the programs. At the same time, runs `checks` and the examples in the
/// documentation one after the other, because cargo locks what it builds. Nothing begins after something that fails.
///
/// # Errors
///
/// When the build, a test or a check fails.
pub(super) fn run(variables: &[(&str, String)], checks: Vec<Check>) -> Result<()> {
    let queue = Mutex::new(build()?);
    let stopped = AtomicBool::new(false);
    let goes_on = || !stopped.load(Ordering::Relaxed);
    let held = |outcome: Result<()>| {
        stopped.fetch_or(outcome.is_err(), Ordering::Relaxed);
        outcome
    };
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    let work = || -> Result<()> {
        while goes_on()
            && let Some(program) = next()
        {
            held(program.run(variables))?;
        }
        Ok(())
    };
    let meanwhile = || {
        let mut checks = checks.into_iter();
        checks.try_for_each(|check| if goes_on() { held(check()) } else { Ok(()) })?;
        if goes_on() { held(examples(variables)) } else { Ok(()) }
    };
    let failed: Vec<_> = thread::scope(|scope| {
        let mut workers: Vec<_> = (0..AT_A_TIME).map(|_| scope.spawn(work)).collect();
        workers.push(scope.spawn(meanwhile));
        let outcomes = workers.into_iter().map(|worker| worker.join().expect("a worker does not panic"));
        outcomes.filter_map(Result::err).map(|error| format!("{error:#}")).collect()
    });
    ensure!(failed.is_empty(), "{}", failed.join("; "));
    Ok(())
}

/// Runs the examples in the documentation.
fn examples(variables: &[(&str, String)]) -> Result<()> {
    let mut docs = cargo();
    docs.args(["test", "--workspace", "--features", FEATURES, "--doc"]).envs(variables.iter().cloned());
    let status = docs.status().context("cargo cannot be run")?;
    ensure!(status.success(), "the examples of the documentation failed: {status}");
    Ok(())
}

fn build() -> Result<VecDeque<Program>> {
    let mut cargo = cargo();
    cargo.args(["test", "--workspace", "--features", FEATURES, "--no-run"]);
    let done = cargo
        .arg("--message-format=json-render-diagnostics")
        .stderr(Stdio::inherit())
        .output()
        .context("cargo cannot be run")?;
    if !done.status.success() {
        bail!("the tests cannot be built: {}", done.status);
    }
    let lines = String::from_utf8(done.stdout)?;
    let mut programs: Vec<Program> =
        lines.lines().filter_map(|line| Program::built(line).transpose()).collect::<Result<_>>()?;
    programs.sort_by_key(|program| {
        LONGEST.iter().position(|name| program.name == *name).unwrap_or(LONGEST.len())
    });
    Ok(programs.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_those_that_cargo_has_built_for_tests() {
        let test = r#"{"reason":"compiler-artifact","package_id":"x","manifest_path":"/a/kvblock/Cargo.toml",
            "target":{"kind":["test"],"name":"it"},"profile":{"opt_level":"1","test":true},"filenames":[],
            "executable":"/a/target/debug/deps/it-1","fresh":true}"#;
        let program = Program {
            name: "kvblock it".into(),
            path: "/a/target/debug/deps/it-1".into(),
            folder: "/a/kvblock".into(),
        };
        assert_eq!(Program::built(test).unwrap(), Some(program));
        let library = test.replace("true}", "false}").replace("\"/a/target/debug/deps/it-1\"", "null");
        for other in [&library, r#"{"reason":"build-finished","success":true}"#] {
            assert_eq!(Program::built(other).unwrap(), None, "{other}");
        }
        assert!(Program::built("error: no").is_err());
    }
}
