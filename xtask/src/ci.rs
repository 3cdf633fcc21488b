//! `cargo xtask ci`, which is also what CI runs: everything that must hold before a change lands, cheapest first.

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use crate::cli::{CiArgs, PortabilityArgs};
use crate::portability;
use crate::test::{self, Check, FEATURES};
use crate::tree;

/// One run of cargo.
#[derive(Debug, PartialEq, Eq)]
struct CargoRun {
    args: Vec<String>,
    /// Environment variables with their values, for this run only.
    variables: Vec<(&'static str, String)>,
}

/// Builds of one crate with the features given, as people outside of the workspace have them. In a build of the
/// workspace each crate gets the features that any other enables, which hides missing ones.
const ALONE: [(&str, &str); 11] = [
    ("kvblock", ""),
    ("kvblock", "serde"),
    ("sparse-select", ""),
    ("sparse-select", "presets"),
    ("attn-kernels", ""),
    ("attn-kernels", "cpu"),
    ("pagoda-prefetch", ""),
    ("pagoda-prefetch", "compress"),
    ("pagoda-prefetch", "disk"),
    ("pagoda-scheduler", ""),
    ("pagoda-scheduler", "serde"),
];

/// More builds of one crate; each checks wgpu, a tokenizer, a client or most of the program's dependencies once more:
/// [`together`] leaves them out.
const ALONE_LONG: [(&str, &str); 15] = [
    ("pagoda-checkpoint", ""),
    ("pagoda-checkpoint", "tokenizer"),
    ("pagoda-checkpoint", "chat"),
    ("pagoda-dense-kernels", ""),
    ("pagoda-dense-kernels", "cpu"),
    ("pagoda-models", ""),
    ("attn-kernels", "gpu"),
    ("pagoda-engine", ""),
    ("pagoda-engine", "disk"),
    ("pagoda-dense-kernels", "gpu"),
    ("pagoda-dense-kernels", "self-test"),
    ("attn-kernels", "reflect"),
    ("pagoda-prefetch", "remote"),
    ("pagoda-engine", "grammar,hub"),
    ("pagoda-cli", ""),
];

/// Runs every check, stops at the first that fails, and says how long each took. Most checks run while the tests do:
/// a build of one crate leaves processors idle, and so does a test that waits for a device. With `alone`, only the
/// builds of single crates run.
///
/// # Errors
///
/// When a check fails.
pub fn run(args: &CiArgs) -> Result<()> {
    tree::checkout()?;
    if args.alone {
        return ALONE.iter().chain(&ALONE_LONG).try_for_each(|row| alone(row).run(Stdio::inherit));
    }
    first(args.linted).iter().try_for_each(|step| step.run(Stdio::inherit))?;
    let docs = (!args.linted).then(|| docs(as_clippy().into_iter().flatten()));
    let steps = docs.into_iter().chain(together()).chain(elsewhere(&installed_targets()));
    let mut checks: Vec<Check> =
        steps.map(|step| Box::new(move || step.run(Stdio::piped)) as Check).collect();
    checks.push(Box::new(portable));
    test::everything(checks)
}

/// Targets of other systems that are checked if they are installed.
const ELSEWHERE: [&str; 4] =
    ["aarch64-apple-darwin", "x86_64-apple-darwin", "x86_64-pc-windows-gnu", "x86_64-pc-windows-msvc"];

/// Checks of the libraries for other systems. The programs compile C too, for which few machines have the compilers.
fn elsewhere(installed: &str) -> Vec<CargoRun> {
    let is_installed = |target: &&str| installed.lines().any(|line| line == *target);
    ELSEWHERE
        .into_iter()
        .filter(is_installed)
        .map(|target| {
            step(&format!("check --workspace --exclude xtask --exclude pagoda-cli --exclude pagoda-serve --target {target}"))
        })
        .collect()
}

/// Targets that rustup has installed, a line each; none without rustup.
fn installed_targets() -> String {
    let listed = Command::new("rustup").args(["target", "list", "--installed"]).output();
    listed.map_or(String::new(), |listed| String::from_utf8_lossy(&listed.stdout).into_owned())
}

/// Compiles the kernels for other devices whose compilers are quick and can be got. An archive that is down is no
/// reason to fail.
fn portable() -> Result<()> {
    eprintln!("$ cargo xtask portability --quick --available");
    let begin = Instant::now();
    portability::run(&PortabilityArgs { quick: true, available: true, ..PortabilityArgs::default() })?;
    eprintln!("  {:.1} s: portability", begin.elapsed().as_secs_f64());
    Ok(())
}

fn step(line: &str) -> CargoRun {
    CargoRun { args: line.split(' ').map(String::from).collect(), variables: Vec::new() }
}

/// Checks that come before all tests: those that fail most often. If the crates are linted, the format has been
/// checked too.
fn first(linted: bool) -> Vec<CargoRun> {
    if linted {
        return Vec::new();
    }
    vec![
        step("fmt --all --check"),
        step(&format!("clippy --workspace --all-targets --features {FEATURES} -- -D warnings")),
    ]
}

/// The documentation of all libraries.
fn docs(clippy: impl IntoIterator<Item = (&'static str, String)>) -> CargoRun {
    // With the examples come the dependencies of tests, so that this takes what clippy has compiled.
    let mut docs = step(&format!("doc --workspace --lib --examples --no-deps --features {FEATURES}"));
    docs.variables.push(("RUSTDOCFLAGS", "-D warnings".into()));
    docs.variables.extend(clippy);
    docs
}

/// Environment variables with which `cargo clippy -- -D warnings` lets cargo check crates. Another run of cargo with
/// these variables need not check the crates again. `None` if clippy's driver is not there, or is installed
/// elsewhere.
fn as_clippy() -> Option<[(&'static str, String); 2]> {
    let sysroot = Command::new("rustc").args(["--print", "sysroot"]).output().ok()?;
    let driver = PathBuf::from(String::from_utf8(sysroot.stdout).ok()?.trim()).join("bin/clippy-driver");
    let driver = driver.is_file().then(|| driver.display().to_string())?;
    Some([
        ("RUSTC_WORKSPACE_WRAPPER", driver),
        ("CLIPPY_ARGS", "-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__".into()),
    ])
}

/// The lints of all crates of [`ALONE`] in two builds: without any of their features, and with all of them. Builds of
/// single crates would check their common dependencies again and again. But only they find a feature of a dependency
/// that a crate needs and that another crate enables.
fn together() -> [CargoRun; 2] {
    let mut packages: Vec<_> = ALONE.iter().map(|(package, _)| format!("--package {package}")).collect();
    packages.dedup();
    let with =
        |(package, feature): &(&str, &str)| (!feature.is_empty()).then(|| format!("{package}/{feature}"));
    let all: Vec<_> = ALONE.iter().filter_map(with).collect();
    let line = format!("clippy {} --no-default-features", packages.join(" "));
    [
        step(&format!("{line} -- -D warnings")),
        step(&format!("{line} --features {} -- -D warnings", all.join(","))),
    ]
}

/// The lints of one crate by itself.
fn alone((package, features): &(&str, &str)) -> CargoRun {
    let features = if features.is_empty() { String::new() } else { format!(" --features {features}") };
    step(&format!("clippy --package {package} --no-default-features{features} -- -D warnings"))
}

impl CargoRun {
    /// Runs the command. `output` says where its output goes; if the output is kept, it is shown at the end.
    fn run(&self, output: fn() -> Stdio) -> Result<()> {
        let line = self.line();
        eprintln!("$ {line}");
        let begin = Instant::now();
        let mut cargo = test::cargo();
        cargo
            .args(&self.args)
            .envs(self.variables.iter().cloned())
            .stdin(Stdio::null())
            .stdout(output())
            .stderr(output());
        let done = cargo.spawn().and_then(Child::wait_with_output).context("cargo cannot be run")?;
        io::stderr().write_all(&[done.stdout, done.stderr].concat())?;
        ensure!(done.status.success(), "{line} failed: {}", done.status);
        eprintln!("  {:.1} s: {line}", begin.elapsed().as_secs_f64());
        Ok(())
    }

    /// The step as typed in a shell.
    fn line(&self) -> String {
        let variables: String =
            self.variables.iter().map(|(name, value)| format!("{name}='{value}' ")).collect();
        format!("{variables}cargo {}", self.args.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_of_other_systems_are_checked_if_they_are_installed() {
        let lines =
            |installed| elsewhere(installed).iter().map(CargoRun::line).collect::<Vec<_>>().join("\n");
        assert_eq!(lines("x86_64-unknown-linux-gnu\n"), "");
        insta::assert_snapshot!(
            lines("x86_64-pc-windows-gnu\nx86_64-unknown-linux-gnu\n"),
            @"cargo check --workspace --exclude xtask --exclude pagoda-cli --exclude pagoda-serve --target x86_64-pc-windows-gnu"
        );
    }

    #[test]
    fn the_steps() {
        assert_eq!(first(true), []);
        let steps = first(false).into_iter().chain([docs([])]).chain(together());
        let lines = steps.map(|step| step.line()).collect::<Vec<_>>().join("\n");
        insta::assert_snapshot!(lines, @"
        cargo fmt --all --check
        cargo clippy --workspace --all-targets --features xtask/s3,xtask/tls -- -D warnings
        RUSTDOCFLAGS='-D warnings' cargo doc --workspace --lib --examples --no-deps --features xtask/s3,xtask/tls
        cargo clippy --package kvblock --package sparse-select --package attn-kernels --package pagoda-prefetch --package pagoda-scheduler --no-default-features -- -D warnings
        cargo clippy --package kvblock --package sparse-select --package attn-kernels --package pagoda-prefetch --package pagoda-scheduler --no-default-features --features kvblock/serde,sparse-select/presets,attn-kernels/cpu,pagoda-prefetch/compress,pagoda-prefetch/disk,pagoda-scheduler/serde -- -D warnings
        ");
    }
}
