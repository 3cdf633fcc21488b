//! A file without a name for a spill, in the folder of a disk tier.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::folder::{FolderFile, open_scratch};
use crate::spill::{Spill, SpillShape};
use crate::tier::{TierError, TierName};
use crate::volume::VolumeFile;

/// Creates a spill in a folder, which is created if missing. Reads bypass the page cache if that is possible. The
/// file is gone when the process ends, however it ends (on Windows: if it ends by itself).
///
/// # Errors
/// [`TierError::Directory`] for a folder that cannot be used, [`TierError::NoRoom`] where less is free than the blocks take.
pub(crate) fn scratch(path: &Path, shape: SpillShape, staging_bytes: usize) -> Result<Spill, TierError> {
    static FILES: AtomicU64 = AtomicU64::new(0);
    let tier = TierName::DISK;
    let unusable = |source| TierError::Directory { tier, path: path.to_owned(), source };
    let name = format!("spill-{}-{}.kv", std::process::id(), FILES.fetch_add(1, Ordering::Relaxed));
    let file = open_scratch(path, &name).map_err(unusable)?;
    let name = path.join(name);
    // Where the file is removed at once, nobody else can ever open it.
    let file = Scratch { file, named: (!remove(&name)).then(|| name.clone()) };
    let (needed_bytes, free_bytes) = (shape.bytes(), fs4::available_space(path).map_err(unusable)?);
    if needed_bytes > free_bytes {
        return Err(TierError::NoRoom { tier, path: path.to_owned(), needed_bytes, free_bytes });
    }
    Spill::new(Box::new(file), name, shape, staging_bytes).map_err(unusable)
}

/// Removes a file, which may be open. Returns whether the file was removed.
fn remove(path: &Path) -> bool {
    std::fs::remove_file(path).is_ok()
}

/// A file that is removed when the value is dropped, if it was not removed at once.
struct Scratch {
    file: FolderFile,
    named: Option<PathBuf>,
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Some(path) = &self.named {
            remove(path);
        }
    }
}

impl VolumeFile for Scratch {
    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(into, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        self.file.write_at(bytes, offset)
    }

    fn size(&self) -> io::Result<u64> {
        self.file.size()
    }

    fn reserve(&self, bytes: u64) -> io::Result<()> {
        self.file.reserve(bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }
}
