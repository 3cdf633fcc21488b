//! A folder of this machine as the volume of a disk tier.
//!
//! Folder and files are made for their owner alone, and no symbolic link is followed below the folder: whoever can
//! make files there could otherwise have others overwritten.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
#[cfg(target_os = "linux")]
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
#[cfg(target_os = "linux")]
use std::sync::Arc;

#[cfg(target_os = "linux")]
use super::direct::{self, Direct};
use crate::tier::{TierError, TierName};
use crate::volume::{Access, Volume, VolumeFile, write_all};

/// A locked folder.
pub(super) struct Folder {
    path: PathBuf,
    writable: bool,
    /// Buffers of reads that bypass the page cache; `None` if reads go through it.
    #[cfg(target_os = "linux")]
    direct: Option<Arc<Direct>>,
    /// Lock of the folder; `None` in a folder that has no lock and cannot be written.
    _lock: Option<Lock>,
}

impl Folder {
    /// Opens and locks a folder, which is created if missing. A folder that cannot be written is opened for reading,
    /// which several processes may do. Bulk reads bypass the page cache if `direct` and if the system and the file
    /// system support it.
    pub(super) fn open(tier: TierName, path: PathBuf, direct: bool) -> Result<Self, TierError> {
        let unusable = |source| TierError::Directory { tier, path: path.clone(), source };
        make_folder(&path).map_err(unusable)?;
        check_private(&path).map_err(unusable)?;
        let locked = match Lock::exclusive(&path) {
            Err(LockError::Unwritable) => Lock::shared(&path).map(|lock| (lock, false)),
            locked => locked.map(|lock| (Some(lock), true)),
        };
        let (lock, writable) = match locked {
            Ok(locked) => locked,
            Err(LockError::Held) => return Err(TierError::Locked { tier, path }),
            Err(LockError::Unwritable) => return Err(unusable(io::ErrorKind::PermissionDenied.into())),
            Err(LockError::Other(error)) => return Err(unusable(error)),
        };
        #[cfg(not(target_os = "linux"))]
        let _ = direct;
        Ok(Self {
            path,
            writable,
            #[cfg(target_os = "linux")]
            direct: direct.then(Arc::default),
            _lock: lock,
        })
    }
}

impl Volume for Folder {
    fn is_writable(&self) -> bool {
        self.writable
    }

    fn open(&self, name: &str, access: Access, bulk: bool) -> io::Result<Box<dyn VolumeFile>> {
        #[cfg(target_os = "linux")]
        let direct = self.direct.clone().filter(|_| bulk);
        #[cfg(not(target_os = "linux"))]
        let _ = bulk;
        Ok(Box::new(FolderFile::open(
            &self.path.join(name),
            access,
            #[cfg(target_os = "linux")]
            direct,
        )?))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        std::fs::rename(self.path.join(from), self.path.join(to))
    }

    /// Syncs the directory on Unix. Windows syncs names by itself.
    fn sync_names(&self) -> io::Result<()> {
        if cfg!(unix) { File::open(&self.path)?.sync_all() } else { Ok(()) }
    }
}

/// Creates an empty file in a folder, which is created if missing. Reads bypass the page cache if that is possible.
pub(super) fn open_scratch(folder: &Path, name: &str) -> io::Result<FolderFile> {
    make_folder(folder)?;
    check_private(folder)?;
    FolderFile::open(
        &folder.join(name),
        Access::Replace,
        #[cfg(target_os = "linux")]
        Some(Arc::default()),
    )
}

/// A file of a folder.
pub(super) struct FolderFile {
    file: File,
    /// A second handle of the file for reads that bypass the page cache; `None` if reads go through it.
    #[cfg(target_os = "linux")]
    direct: Option<(File, Arc<Direct>)>,
}

impl FolderFile {
    /// Opens a file. `direct` holds the buffers of reads that bypass the page cache; with `None`, reads go through
    /// it.
    fn open(
        path: &Path,
        access: Access,
        #[cfg(target_os = "linux")] direct: Option<Arc<Direct>>,
    ) -> io::Result<Self> {
        let file = open_file(path, access)?;
        #[cfg(target_os = "linux")]
        let direct = match direct {
            Some(direct) => direct::open(path)?.map(|file| (file, direct)),
            None => None,
        };
        Ok(Self {
            file,
            #[cfg(target_os = "linux")]
            direct,
        })
    }
}

impl VolumeFile for FolderFile {
    #[cfg(target_os = "linux")]
    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        if let Some((file, direct)) = &self.direct
            && direct.read_at(file, into, offset)?
        {
            return Ok(into.len());
        }
        announce(&self.file, offset, into.len());
        std::os::unix::fs::FileExt::read_at(&self.file, into, offset)
    }

    #[cfg(all(unix, not(target_os = "linux")))]
    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        std::os::unix::fs::FileExt::read_at(&self.file, into, offset)
    }

    #[cfg(windows)]
    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        std::os::windows::fs::FileExt::seek_read(&self.file, into, offset)
    }

    #[cfg(unix)]
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        std::os::unix::fs::FileExt::write_at(&self.file, bytes, offset)
    }

    #[cfg(windows)]
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        std::os::windows::fs::FileExt::seek_write(&self.file, bytes, offset)
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn reserve(&self, bytes: u64) -> io::Result<()> {
        let len = self.size()?;
        if len >= bytes || allocate(&self.file, bytes)? {
            return Ok(());
        }
        // Zeros take the room where the file system has no call for it.
        let zeros = vec![0; 1 << 16];
        let mut at = len;
        while at < bytes {
            let count = usize::try_from(bytes - at).unwrap_or(usize::MAX).min(zeros.len());
            write_all(self, &zeros[..count], at)?;
            at += count as u64;
        }
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

/// Makes the folder and its parents, accessible to their owner only.
fn make_folder(path: &Path) -> io::Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    match builder.create(path) {
        // A file system that cannot be written may hold the folder all the same.
        Err(_) if path.is_dir() => Ok(()),
        made => made,
    }
}

/// Refuses a folder in which other users can create files, because they could replace blocks.
#[cfg(unix)]
fn check_private(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    let mode = std::fs::metadata(path)?.permissions().mode();
    if mode & 0o002 == 0 {
        return Ok(());
    }
    let told = format!("every user can write to it (mode {:04o}); name a folder below it", mode & 0o7777);
    Err(io::Error::other(told))
}

#[cfg(not(unix))]
fn check_private(_: &Path) -> io::Result<()> {
    Ok(())
}

fn open_file(path: &Path, access: Access) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(access != Access::Read);
    match access {
        Access::Read | Access::Write => {}
        Access::Create => drop(options.create(true)),
        Access::Replace => {
            match std::fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            options.create_new(true);
        }
    }
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt as _;
        options.mode(0o600).custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed());
    }
    let file = options.open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other(format!("{} is not a file", path.display())));
    }
    Ok(file)
}

/// A file that is locked while the tier is open; the lock ends with the process.
struct Lock(File);

enum LockError {
    /// Another tier holds the lock.
    Held,
    /// The folder cannot be written.
    Unwritable,
    Other(io::Error),
}

impl Lock {
    fn exclusive(folder: &Path) -> Result<Self, LockError> {
        let file = open_file(&folder.join("lock"), Access::Create).map_err(|error| match error.kind() {
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => LockError::Unwritable,
            _ => LockError::Other(error),
        })?;
        let locked = file.try_lock();
        Self::taken(file, locked)
    }

    /// Locks a folder for reading, if it has a lock file. A folder without a lock file has no writer yet; if one
    /// starts later, the reader finds wrong checksums.
    fn shared(folder: &Path) -> Result<Option<Self>, LockError> {
        let file = match open_file(&folder.join("lock"), Access::Read) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(LockError::Other(error)),
        };
        let locked = file.try_lock_shared();
        Self::taken(file, locked).map(Some)
    }

    fn taken(file: File, locked: Result<(), TryLockError>) -> Result<Self, LockError> {
        match locked {
            Ok(()) => Ok(Self(file)),
            Err(TryLockError::WouldBlock) => Err(LockError::Held),
            Err(TryLockError::Error(error)) => Err(LockError::Other(error)),
        }
    }
}

impl Drop for Lock {
    /// Unlocks the file explicitly: closing it is not enough while a child process that is just being started has it
    /// open too.
    fn drop(&mut self) {
        let _ = self.0.unlock();
    }
}

/// Requests readahead of all bytes of a read at once, because the system's own readahead is slow if several threads read
/// different parts of one file.
#[cfg(target_os = "linux")]
fn announce(file: &File, offset: u64, bytes: usize) {
    // Advice only: a file system that takes none reads all the same.
    let _ = rustix::fs::fadvise(file, offset, NonZeroU64::new(bytes as u64), rustix::fs::Advice::WillNeed);
}

/// Allocates the first `bytes` bytes of a file. Returns false if the file system cannot.
#[cfg(target_os = "linux")]
fn allocate(file: &File, bytes: u64) -> io::Result<bool> {
    use rustix::io::Errno;
    match rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, bytes) {
        Ok(()) => Ok(true),
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[cfg(not(target_os = "linux"))]
fn allocate(_: &File, _: u64) -> io::Result<bool> {
    Ok(false)
}
