//! The hub's cache: files by their hashes in `blobs`, and a folder of links to them for each commit in `snapshots`.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use super::error::HubError;

/// The cache folder of one repository.
#[derive(Debug, Clone)]
pub struct HubCache {
    root: PathBuf,
    locks: PathBuf,
}

/// A model in the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cached {
    /// Name of the repository, `USER/REPO`.
    pub repo: String,
    /// Folder of its newest files.
    pub snapshot: PathBuf,
}

impl HubCache {
    /// The folder of `repo`, `USER/REPO`, in the cache folder of all repositories.
    #[must_use]
    pub fn new(cache: &Path, repo: &str) -> Self {
        let name = format!("models--{}", repo.replace('/', "--"));
        Self { locks: cache.join(".locks").join(&name), root: cache.join(name) }
    }

    /// The models of a cache folder, sorted. Each is at the commit of its branch `main`, or at another one if that was not
    /// fetched.
    #[must_use]
    pub fn list(cache: &Path) -> Vec<Cached> {
        let mut found = Vec::new();
        for folder in sub_folders(cache) {
            let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let Some(repo) = name.strip_prefix("models--").and_then(|name| name.split_once("--")) else {
                continue;
            };
            let this = Self { locks: PathBuf::new(), root: folder.clone() };
            let other = || sub_folders(&folder.join("snapshots")).pop();
            if let Some(snapshot) = this.snapshot("main").or_else(other) {
                found.push(Cached { repo: format!("{}/{}", repo.0, repo.1), snapshot });
            }
        }
        found
    }

    /// Folder of the commit that a revision names, or that it named when it was last fetched.
    #[must_use]
    pub fn snapshot(&self, revision: &str) -> Option<PathBuf> {
        let commit = fs::read_to_string(self.root.join("refs").join(revision));
        let commit = commit.map_or_else(|_| revision.to_owned(), |commit| commit.trim().to_owned());
        let folder = self.root.join("snapshots").join(commit);
        folder.is_dir().then_some(folder)
    }

    /// Paths of the files of a snapshot, relative to it and sorted.
    #[must_use]
    pub fn files(snapshot: &Path) -> Vec<String> {
        let mut files = Vec::new();
        let mut open = vec![PathBuf::new()];
        while let Some(below) = open.pop() {
            for entry in fs::read_dir(snapshot.join(&below)).into_iter().flatten().flatten() {
                let path = below.join(entry.file_name());
                // Follows links, unlike the entry.
                match fs::metadata(snapshot.join(&path)) {
                    Ok(meta) if meta.is_dir() => open.push(path),
                    Ok(_) => files
                        .push(path.iter().map(|part| part.to_string_lossy()).collect::<Vec<_>>().join("/")),
                    Err(_) => {}
                }
            }
        }
        files.sort();
        files
    }

    /// Makes the folders for a commit, and returns the folder of its files.
    pub(super) fn begin(&self, revision: &str, commit: &str) -> Result<PathBuf, HubError> {
        let snapshot = self.root.join("snapshots").join(commit);
        let revision = self.root.join("refs").join(revision);
        let refs = revision.parent().unwrap_or(&self.root);
        for folder in [&snapshot, &self.root.join("blobs"), &self.locks, refs] {
            fs::create_dir_all(folder).map_err(HubError::io(folder, "made"))?;
        }
        Ok(snapshot)
    }

    /// Records the commit of a revision, when all of its files are there.
    pub(super) fn end(&self, revision: &str, commit: &str) -> Result<(), HubError> {
        if revision == commit {
            return Ok(());
        }
        let path = self.root.join("refs").join(revision);
        fs::write(&path, commit).map_err(HubError::io(&path, "written"))
    }

    /// Locks a blob against other processes, with the lock that the hub's own tools take. Some network file systems
    /// cannot lock.
    pub(super) fn lock(&self, etag: &str) -> Result<File, HubError> {
        let path = self.locks.join(format!("{etag}.lock"));
        let file = File::create(&path).map_err(HubError::io(&path, "made"))?;
        let _ = file.lock();
        Ok(file)
    }

    /// Path of the complete file with a hash; `None` if the cache lacks it.
    pub(super) fn blob(&self, etag: &str) -> Option<PathBuf> {
        let path = self.root.join("blobs").join(etag);
        path.is_file().then_some(path)
    }

    /// Path of the unfinished file of a blob.
    pub(super) fn unfinished(&self, etag: &str) -> PathBuf {
        self.root.join("blobs").join(format!("{etag}.incomplete"))
    }

    /// Turns the unfinished file of a blob, which is complete and checked, into the finished one.
    pub(super) fn keep(&self, etag: &str) -> Result<(), HubError> {
        let (from, to) = (self.unfinished(etag), self.root.join("blobs").join(etag));
        fs::rename(&from, &to).map_err(HubError::io(&from, "renamed"))
    }

    /// Gives a blob its name in a snapshot by a relative link. Moves the blob if the system has no links.
    pub(super) fn link(&self, snapshot: &Path, file: &str, etag: &str) -> Result<(), HubError> {
        let path = snapshot.join(file);
        let folder = path.parent().unwrap_or(snapshot);
        fs::create_dir_all(folder).map_err(HubError::io(folder, "made"))?;
        let up = "../".repeat(2 + file.matches('/').count());
        let linked = match symlink(Path::new(&format!("{up}blobs/{etag}")), &path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                fs::remove_file(&path).and_then(|()| symlink(Path::new(&format!("{up}blobs/{etag}")), &path))
            }
            other => other,
        };
        if linked.is_ok() && path.is_file() {
            return Ok(());
        }
        let blob = self.root.join("blobs").join(etag);
        fs::rename(blob, &path).map_err(HubError::io(&path, "made"))
    }
}

#[cfg(unix)]
fn symlink(to: &Path, at: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(to, at)
}

#[cfg(windows)]
fn symlink(to: &Path, at: &Path) -> io::Result<()> {
    std::os::windows::fs::symlink_file(to, at)
}

fn sub_folders(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut folders: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
    folders.sort();
    folders
}
