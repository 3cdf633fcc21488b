//! The bytes of a checkpoint file, mapped or owned.

use std::{fs::File, ops::Deref, path::Path};

use memmap2::Mmap;

use super::WeightError;

/// Bytes that stay in place while a reader returns slices of them.
#[derive(Debug)]
pub(super) enum Bytes {
    Mapped(Mmap),
    Owned(Vec<u8>),
}

impl Bytes {
    /// Maps `path` read-only. An empty file is not mapped, since some systems refuse that, and has no bytes.
    pub(super) fn map(path: &Path) -> Result<Self, WeightError> {
        let io = |source| WeightError::Io { path: path.into(), source };
        let file = File::open(path).map_err(io)?;
        let meta = file.metadata().map_err(io)?;
        if meta.is_dir() {
            return Err(io(std::io::ErrorKind::IsADirectory.into()));
        }
        if meta.len() == 0 {
            return Ok(Self::Owned(Vec::new()));
        }
        Ok(Self::Mapped(map_file(&file).map_err(io)?))
    }
}

#[expect(unsafe_code, reason = "mapping a file is the one operation here that the compiler cannot check")]
fn map_file(file: &File) -> std::io::Result<Mmap> {
    // SAFETY: the map is read-only and private to this process. A file that another process truncates or rewrites
    // while it is mapped breaks the guarantee that a `&[u8]` does not change; checkpoints are replaced by rename,
    // as every tool of the field and `fetch` do, never edited in place.
    unsafe { Mmap::map(file) }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Owned(bytes) => bytes,
        }
    }
}
