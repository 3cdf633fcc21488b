//! `cargo xtask test`: sets the machine up, fetches the default model, runs every test of the workspace.

mod programs;

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use attn_kernels::gpu;

use crate::cli::TestArgs;
use crate::default_model;
use crate::set_up::set_up;
use crate::setup::{Found, Need};
use crate::tree;
pub(crate) use programs::Check;

/// Cargo features with which the whole workspace is tested: S3, and TLS for the server and for Redis.
pub const FEATURES: &str = "xtask/s3,xtask/tls";

/// Name of the environment variable that requests the long form of every test.
const LONG: &str = "PAGODA_LONG_TESTS";
/// Cases of each property in the long form; the short form has the number that the test states.
const LONG_CASES: &str = "5000";

/// Number of threads of Mesa's software driver in addition to the submitting ones. Tests run concurrently anyway, and the
/// driver's threads, as many per test as the machine has processors, mostly wake each other: without them the tests of the
/// engine take a sixth less processor time.
const DRIVER_THREADS: (&str, &str) = ("LP_NUM_THREADS", "0");

/// Sets the machine up and fetches the default model, then runs every test, or `cargo test` with `args`.
///
/// A run of everything also fails if there is a snapshot file that no test reads. With `PAGODA_LONG_TESTS` set, tests
/// take their long form, and properties 5,000 cases unless `PROPTEST_CASES` says otherwise; those of kernels have fewer.
///
/// # Errors
///
/// If the machine lacks something that could not be installed, the model cannot be fetched, or a test fails.
pub fn run(args: &TestArgs) -> Result<()> {
    if args.args.is_empty() {
        return everything(Vec::new());
    }
    let references = ready()?;
    let status = cargo()
        .args(cargo_args(&args.args))
        .envs(variables(&references))
        .status()
        .context("cargo cannot be run")?;
    ensure!(status.success(), "cargo test failed: {status}");
    Ok(())
}

/// Runs every test, and `checks` at the same time; see [`run`].
pub(crate) fn everything(checks: Vec<Check>) -> Result<()> {
    let references = ready()?;
    programs::run(&variables(&references), checks)?;
    let unread = references.unread(tree::root());
    ensure!(unread.is_empty(), "no test reads these snapshots, delete them: {}", unread.join(", "));
    Ok(())
}

/// Sets up what tests need.
fn ready() -> Result<References> {
    tree::checkout()?;
    let mut needs = vec![Need::Gpu, Need::Tests];
    if default_model::cached()?.is_none() {
        needs.push(Need::DefaultModel);
    }
    set_up(&needs)?;
    default_model::path()?;
    References::beside_this_program()
}

/// Variables of the environment that tests run with.
fn variables(references: &References) -> Vec<(&'static str, String)> {
    let unless_set =
        |(name, value): (&'static str, &str)| env::var_os(name).is_none().then(|| (name, value.into()));
    let mut variables = vec![("INSTA_SNAPSHOT_REFERENCES_FILE", references.list.display().to_string())];
    variables.extend(unless_set(DRIVER_THREADS));
    variables.extend(only_driver());
    if env::var_os(LONG).is_some() {
        variables.extend(unless_set(("PROPTEST_CASES", LONG_CASES)));
    }
    if env::var_os("CI").is_some() {
        variables.push(("INSTA_UPDATE", "no".into()));
    }
    variables
}

/// The variable that names lavapipe's driver, if no other installed driver has a device. Without it, a process loads
/// all drivers. This takes a quarter of the processor time of a process that generates eight tokens by the tiny
/// model.
fn only_driver() -> Option<(&'static str, String)> {
    let adapters = gpu::adapters();
    if adapters.is_empty() || !adapters.iter().all(|adapter| adapter.name.starts_with("llvmpipe")) {
        return None;
    }
    let vulkan =
        Found::on_this_machine(&[Need::Gpu]).vulkan.filter(|vulkan| vulkan.redirected_by.is_none())?;
    let manifests = vulkan.drivers.into_iter().map(|driver| driver.manifest);
    let of_lavapipe =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("lvp_"));
    let named = env::join_paths(manifests.filter(of_lavapipe)).ok()?.into_string().ok()?;
    (!named.is_empty()).then_some(("VK_DRIVER_FILES", named))
}

/// The cargo that runs this program, with the workspace as its working directory.
pub(crate) fn cargo() -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(tree::root());
    cargo
}

/// `cargo test` for the workspace with all kinds of tiers, unless `extra` names packages.
fn cargo_args(extra: &[OsString]) -> Vec<OsString> {
    let names_package = |arg: &OsString| {
        let arg = arg.to_string_lossy();
        arg == "--package"
            || arg.starts_with("--package=")
            || (arg.starts_with("-p") && !arg.starts_with("--"))
    };
    let mut for_cargo = extra.iter().take_while(|arg| *arg != "--");
    let scope: &[&str] =
        if for_cargo.any(names_package) { &[] } else { &["--workspace", "--features", FEATURES] };
    let fixed = ["test"].iter().chain(scope).map(OsString::from);
    fixed.chain(extra.iter().cloned()).collect()
}

/// The list to which insta appends every snapshot file that a test reads.
struct References {
    list: PathBuf,
}

impl References {
    fn beside_this_program() -> Result<Self> {
        let list = env::current_exe()?.with_file_name("snapshot-references.txt");
        fs::write(&list, "").with_context(|| format!("{} cannot be written", list.display()))?;
        Ok(Self { list })
    }

    /// Snapshot files below `root` that are not on the list, relative to `root`.
    fn unread(&self, root: &Path) -> Vec<String> {
        let list = fs::read_to_string(&self.list).unwrap_or_default();
        let read: Vec<_> = list.lines().filter_map(|line| fs::canonicalize(line).ok()).collect();
        tree::files(root)
            .into_iter()
            .filter(|path| path.extension().is_some_and(|extension| extension == "snap"))
            .filter(|path| fs::canonicalize(root.join(path)).is_ok_and(|path| !read.contains(&path)))
            .map(|path| path.display().to_string())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(extra: &str) -> String {
        let extra: Vec<_> = extra.split_whitespace().map(OsString::from).collect();
        cargo_args(&extra).join(" ".as_ref()).into_string().unwrap()
    }

    #[test]
    fn arguments_are_passed_on() {
        assert_eq!(args(""), "test --workspace --features xtask/s3,xtask/tls");
        assert_eq!(
            args("some_test -- --nocapture -p x"),
            "test --workspace --features xtask/s3,xtask/tls some_test -- --nocapture -p x"
        );
        assert_eq!(args("-p kvblock"), "test -p kvblock");
        assert_eq!(args("--doc -pkvblock"), "test --doc -pkvblock");
        assert_eq!(args("--package=kvblock"), "test --package=kvblock");
        assert_eq!(
            args("--profile release"),
            "test --workspace --features xtask/s3,xtask/tls --profile release"
        );
    }

    #[test]
    fn a_snapshot_that_no_test_reads_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let snapshots = folder.path().join("a/snapshots");
        fs::create_dir_all(&snapshots).unwrap();
        for name in ["read.snap", "left.snap"] {
            fs::write(snapshots.join(name), "").unwrap();
        }
        let list = folder.path().join("list");
        fs::write(&list, format!("{}/../snapshots/read.snap\n", snapshots.display())).unwrap();
        assert_eq!(References { list }.unread(folder.path()), ["a/snapshots/left.snap"]);
    }
}
