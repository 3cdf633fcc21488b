//! Finds what is on the machine: platform, Vulkan loader and drivers, Python with pip.
//!
//! Files are looked up in the same places as by the dynamic loader and the Vulkan loader.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use attn_kernels::gpu;
use serde::Serialize;

use super::Need;

/// Places to look: the file system below a folder, and environment variables. Tests use a temporary folder.
#[derive(Debug, Clone)]
pub struct Host {
    root: PathBuf,
    variables: BTreeMap<String, String>,
}

/// Requirements that were found on a machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Found {
    /// The operating system, as far as it matters for installation.
    pub platform: Platform,
    /// Vulkan; none on macOS and Windows, where wgpu uses Metal and Direct3D 12.
    pub vulkan: Option<Vulkan>,
    /// The first Python 3 on the search path that has pip, or else the first Python 3; none if it was not
    /// looked for.
    pub python: Option<Python>,
    /// Path of redis-server.
    pub redis_server: Option<PathBuf>,
    /// Path of Node.js.
    pub node: Option<PathBuf>,
    /// Path of npm; on Windows the path of Node.js, which always has npm.
    pub npm: Option<PathBuf>,
    /// Path of Chromium's driver, which knows where Chromium is.
    pub chromedriver: Option<PathBuf>,
}

/// The operating system, as far as it matters for installation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Platform {
    /// Debian, Ubuntu or a derivative, with apt-get.
    Debian {
        /// Whether this process may install packages.
        root: bool,
    },
    /// Any other system that is neither macOS nor Windows.
    OtherLinux,
    /// macOS.
    MacOs,
    /// Windows.
    Windows,
}

/// Vulkan on this machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Vulkan {
    /// Path of libvulkan.so.1.
    pub loader: Option<PathBuf>,
    /// Installed drivers, including drivers with a manifest only.
    pub drivers: Vec<Driver>,
    /// The environment variable that names the drivers instead of the system's folders, if one is set.
    pub redirected_by: Option<&'static str>,
    /// Whether an adapter opens although the Vulkan files were not found; only checked in this case.
    pub answers: bool,
}

/// A Vulkan driver (ICD).
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Driver {
    /// Manifest of the driver, a JSON file.
    pub manifest: PathBuf,
    /// Shared library of the driver, if it exists.
    pub library: Option<PathBuf>,
}

/// A Python 3.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Python {
    /// Command that runs the program.
    pub command: String,
    /// Version of Python, as the program reports it.
    pub version: String,
    /// Version of pip, if this Python has it.
    pub pip: Option<String>,
}

/// Variables that name the Vulkan drivers instead of the system's folders; the first one that is set wins.
const DRIVER_VARIABLES: [&str; 2] = ["VK_DRIVER_FILES", "VK_ICD_FILENAMES"];

impl Vulkan {
    /// Whether there is a loader and at least one driver with its library, or an adapter was found.
    pub fn usable(&self) -> bool {
        self.answers || (self.loader.is_some() && self.drivers.iter().any(|driver| driver.library.is_some()))
    }
}

impl Found {
    /// Looks on this machine for what `needs` require. If the Vulkan files are not in the usual folders, an
    /// adapter that opens is enough.
    pub fn on_this_machine(needs: &[Need]) -> Self {
        let mut found = Self::on(&Host::this(), needs);
        if let Some(vulkan) = found.vulkan.as_mut().filter(|vulkan| !vulkan.usable()) {
            vulkan.answers = !gpu::adapters().is_empty();
        }
        found
    }

    /// Looks on `host` for what `needs` require.
    pub fn on(host: &Host, needs: &[Need]) -> Self {
        let linux = !cfg!(any(target_os = "macos", windows));
        Self {
            platform: platform(host),
            vulkan: linux.then(|| vulkan(host)),
            // Python has to be run twice, which takes half a second: done only before a fetch.
            python: [Need::DefaultModel, Need::Tests]
                .iter()
                .any(|need| needs.contains(need))
                .then(|| python(host))
                .flatten(),
            redis_server: host.on_search_path("redis-server"),
            node: host.on_search_path("node"),
            npm: host.on_search_path(if cfg!(windows) { "node" } else { "npm" }),
            chromedriver: host.on_search_path("chromedriver"),
        }
    }
}

impl Host {
    /// The machine that this process runs on.
    pub fn this() -> Self {
        Self::new(
            "/",
            env::vars_os().filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?))),
        )
    }

    /// A machine whose file system is below `root`.
    pub fn new(root: impl Into<PathBuf>, variables: impl IntoIterator<Item = (String, String)>) -> Self {
        Self { root: root.into(), variables: variables.into_iter().collect() }
    }

    /// The path of `absolute` in the file system of this process.
    fn path(&self, absolute: impl AsRef<Path>) -> PathBuf {
        let absolute = absolute.as_ref();
        self.root.join(absolute.strip_prefix("/").unwrap_or(absolute))
    }

    /// A variable's value; an empty one counts as unset.
    fn variable(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// The paths in a variable that lists several.
    fn paths(&self, name: &str, default: &str) -> Vec<PathBuf> {
        env::split_paths(self.variable(name).unwrap_or(default)).filter(|path| path.is_absolute()).collect()
    }

    fn on_search_path(&self, program: &str) -> Option<PathBuf> {
        let program = format!("{program}{}", env::consts::EXE_SUFFIX);
        self.paths("PATH", "")
            .into_iter()
            .map(|folder| self.path(folder).join(&program))
            .find(|path| path.is_file())
    }
}

fn platform(host: &Host) -> Platform {
    if cfg!(target_os = "macos") {
        return Platform::MacOs;
    }
    if cfg!(windows) {
        return Platform::Windows;
    }
    let release = fs::read_to_string(host.path("/etc/os-release")).unwrap_or_default();
    let kin = release
        .lines()
        .filter_map(|line| line.strip_prefix("ID=").or_else(|| line.strip_prefix("ID_LIKE=")))
        .flat_map(|value| value.trim_matches('"').split_whitespace())
        .any(|id| id == "debian" || id == "ubuntu");
    if kin && host.on_search_path("apt-get").is_some() {
        Platform::Debian { root: first_line(host, "id", &["-u"]).as_deref() == Some("0") }
    } else {
        Platform::OtherLinux
    }
}

fn vulkan(host: &Host) -> Vulkan {
    let libraries = library_folders(host);
    let redirected_by = DRIVER_VARIABLES.into_iter().find(|name| host.variable(name).is_some());
    let mut manifests = match redirected_by {
        Some(name) => manifests_in(host, &host.paths(name, "")),
        None => manifests_in(host, &driver_folders(host)),
    };
    manifests.extend(manifests_in(host, &host.paths("VK_ADD_DRIVER_FILES", "")));
    let driver =
        |manifest: PathBuf| Driver { library: driver_library(host, &manifest, &libraries), manifest };
    Vulkan {
        loader: in_folders(host, &libraries, "libvulkan.so.1"),
        drivers: manifests.into_iter().map(driver).collect(),
        redirected_by,
        answers: false,
    }
}

/// Folders of driver manifests, in the order of the Vulkan loader: the user's configuration, the system's,
/// then data.
fn driver_folders(host: &Host) -> Vec<PathBuf> {
    let of_user = |variable: &str, below_home: &str| match host.variable(variable) {
        Some(folder) => Some(PathBuf::from(folder)),
        None => host.variable("HOME").map(|home| Path::new(home).join(below_home)),
    };
    let mut folders: Vec<PathBuf> = of_user("XDG_CONFIG_HOME", ".config").into_iter().collect();
    folders.extend(host.paths("XDG_CONFIG_DIRS", "/etc/xdg"));
    folders.extend(["/usr/local/etc", "/etc"].map(PathBuf::from));
    folders.extend(of_user("XDG_DATA_HOME", ".local/share"));
    folders.extend(host.paths("XDG_DATA_DIRS", "/usr/local/share:/usr/share"));
    folders.iter().map(|folder| folder.join("vulkan/icd.d")).collect()
}

/// The manifests that `paths` name: files, or all manifests in a folder.
fn manifests_in(host: &Host, paths: &[PathBuf]) -> Vec<PathBuf> {
    let mut manifests = Vec::new();
    for path in paths {
        if host.path(path).is_file() {
            manifests.push(path.clone());
        }
        let mut names: Vec<_> =
            entries(&host.path(path)).filter_map(|entry| entry.file_name().map(PathBuf::from)).collect();
        names.retain(|name| name.extension().is_some_and(|extension| extension == "json"));
        names.sort();
        manifests.extend(names.into_iter().map(|name| path.join(name)));
    }
    manifests
}

/// The library that a manifest names, if it exists.
fn driver_library(host: &Host, manifest: &Path, folders: &[PathBuf]) -> Option<PathBuf> {
    let text = fs::read_to_string(host.path(manifest)).ok()?;
    let manifest_json: serde_json::Value = serde_json::from_str(&text).ok()?;
    let library = Path::new(manifest_json["ICD"]["library_path"].as_str()?);
    if library.components().count() == 1 {
        return in_folders(host, folders, library);
    }
    let library = manifest.parent()?.join(library);
    host.path(&library).is_file().then_some(library)
}

/// Folders that the dynamic loader searches, as far as can be told from files.
fn library_folders(host: &Host) -> Vec<PathBuf> {
    let mut folders = host.paths("LD_LIBRARY_PATH", "");
    let mut configured: Vec<_> = entries(&host.path("/etc/ld.so.conf.d")).collect();
    configured.sort();
    configured.push(host.path("/etc/ld.so.conf"));
    for file in configured {
        let text = fs::read_to_string(file).unwrap_or_default();
        folders.extend(
            text.lines().map(|line| PathBuf::from(line.trim())).filter(|folder| folder.is_absolute()),
        );
    }
    let multiarch = format!("{}-linux-gnu", env::consts::ARCH);
    for lib in ["/lib", "/usr/lib", "/usr/local/lib"] {
        folders.extend([
            PathBuf::from(lib),
            PathBuf::from(format!("{lib}64")),
            Path::new(lib).join(&multiarch),
        ]);
    }
    folders
}

fn in_folders(host: &Host, folders: &[PathBuf], file: impl AsRef<Path>) -> Option<PathBuf> {
    folders.iter().map(|folder| folder.join(&file)).find(|path| host.path(path).is_file())
}

/// Paths of a folder's entries; none if the folder cannot be read.
fn entries(folder: &Path) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(folder).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()))
}

fn python(host: &Host) -> Option<Python> {
    let commands: &[&str] = if cfg!(windows) { &["python", "py"] } else { &["python3", "python"] };
    let probe = |&command: &&str| {
        let version = first_line(host, command, &["--version"])?;
        version.starts_with("Python 3.").then_some(())?;
        let pip = first_line(host, command, &["-I", "-m", "pip", "--version"]);
        let pip = pip.map(|line| line.split(" from ").next().unwrap_or_default().to_string());
        Some(Python { command: command.to_string(), version, pip })
    };
    let pythons: Vec<_> = commands.iter().filter_map(probe).collect();
    pythons.iter().find(|python| python.pip.is_some()).or(pythons.first()).cloned()
}

/// The first line that a program prints; none if it cannot be run or fails.
fn first_line(host: &Host, program: &str, args: &[&str]) -> Option<String> {
    let program = if cfg!(windows) { PathBuf::from(program) } else { host.on_search_path(program)? };
    let output = Command::new(program)
        .args(args)
        .current_dir(env::temp_dir())
        .output()
        .ok()
        .filter(|output| output.status.success())?;
    String::from_utf8(output.stdout).ok()?.lines().next().map(str::to_string)
}

#[cfg(test)]
mod tests;
