//! Slab files: arrays of slots, read and written in place at any position by any thread.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io;
#[cfg(target_os = "linux")]
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use rustc_hash::FxHashMap;

#[cfg(target_os = "linux")]
use super::direct::{self, Direct};
use super::failed;
use crate::sync::lock;
use crate::tier::{BlockLayout, TierError};

/// Slots start on pages, so that no write touches the page of a neighbour.
const PAGE_BYTES: u64 = 4096;
/// A slab ends with the last slot that starts within this many bytes.
const SLAB_BYTES: u64 = 1 << 30;

/// Bytes that one block takes on disk.
pub(super) fn slot_bytes(layout: BlockLayout) -> u64 {
    (layout.block_bytes() as u64).next_multiple_of(PAGE_BYTES)
}

/// The slabs of one directory, opened as slots in them are used.
pub(super) struct Slabs {
    directory: PathBuf,
    slot_bytes: u64,
    slots_per_slab: u32,
    files: Mutex<FxHashMap<u32, Arc<Slab>>>,
    /// Buffers of direct reads; `None` if reads go through the page cache.
    #[cfg(target_os = "linux")]
    direct: Option<Direct>,
}

/// One file.
struct Slab {
    file: File,
    /// The same file for direct reads, if they are possible.
    #[cfg(target_os = "linux")]
    direct: Option<File>,
}

impl Slabs {
    /// Reads bypass the page cache if `direct` and if the system and the file system support it.
    pub(super) fn open(directory: PathBuf, layout: BlockLayout, direct: bool) -> Result<Self, TierError> {
        let slot_bytes = slot_bytes(layout);
        let slots_per_slab =
            u32::try_from(SLAB_BYTES.div_ceil(slot_bytes)).expect("a slab has at most 2^18 slots");
        #[cfg(not(target_os = "linux"))]
        let _ = direct;
        Ok(Self {
            directory,
            slot_bytes,
            slots_per_slab,
            files: Mutex::default(),
            #[cfg(target_os = "linux")]
            direct: direct.then(Direct::default),
        })
    }

    pub(super) fn read(&self, slot: u32, offset: usize, into: &mut [u8]) -> Result<(), TierError> {
        let (slab, start) = self.locate(slot)?;
        let start = start + offset as u64;
        if self.read_direct(&slab, into, start).map_err(|e| failed("reading a slab", e))? {
            return Ok(());
        }
        announce(&slab.file, start, into.len());
        read_exact_at(&slab.file, into, start).map_err(|e| failed("reading a slab", e))
    }

    pub(super) fn write(&self, slot: u32, block: &[u8]) -> Result<(), TierError> {
        let (slab, start) = self.locate(slot)?;
        write_all_at(&slab.file, block, start).map_err(|e| failed("writing a slab", e))
    }

    /// Makes the bytes in `slots` durable.
    pub(super) fn sync(&self, slots: impl Iterator<Item = u32>) -> Result<(), TierError> {
        let slabs: BTreeSet<u32> = slots.map(|slot| slot / self.slots_per_slab).collect();
        for slab in slabs {
            let slab = self.slab(slab)?;
            slab.file.sync_data().map_err(|e| failed("syncing a slab", e))?;
        }
        Ok(())
    }

    /// Returns false if the slab must be read through the page cache.
    #[cfg(target_os = "linux")]
    fn read_direct(&self, slab: &Slab, into: &mut [u8], offset: u64) -> io::Result<bool> {
        let (Some(direct), Some(file)) = (&self.direct, &slab.direct) else { return Ok(false) };
        direct.read_at(file, into, offset)
    }

    #[cfg(not(target_os = "linux"))]
    fn read_direct(&self, _: &Slab, _: &mut [u8], _: u64) -> io::Result<bool> {
        Ok(false)
    }

    fn locate(&self, slot: u32) -> Result<(Arc<Slab>, u64), TierError> {
        let slab = self.slab(slot / self.slots_per_slab)?;
        Ok((slab, u64::from(slot % self.slots_per_slab) * self.slot_bytes))
    }

    fn slab(&self, slab: u32) -> Result<Arc<Slab>, TierError> {
        let mut files = lock(&self.files);
        if let Some(slab) = files.get(&slab) {
            return Ok(slab.clone());
        }
        let path = self.directory.join(format!("slab-{slab:04}.kv"));
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        let file = file.map_err(|e| failed("opening a slab", e))?;
        sync_directory(&self.directory).map_err(|e| failed("syncing the directory", e))?;
        #[cfg(target_os = "linux")]
        let direct = match self.direct {
            Some(_) => direct::open(&path).map_err(|e| failed("opening a slab", e))?,
            None => None,
        };
        let opened = Arc::new(Slab {
            file,
            #[cfg(target_os = "linux")]
            direct,
        });
        files.insert(slab, opened.clone());
        Ok(opened)
    }
}

/// Makes the names of new files durable; Windows does so by itself.
pub(super) fn sync_directory(directory: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(directory)?.sync_all() } else { Ok(()) }
}

/// Asks for all bytes of a read at once: the system's own readahead goes by small steps where several threads read
/// here and there in one file.
#[cfg(target_os = "linux")]
fn announce(file: &File, offset: u64, bytes: usize) {
    // Advice only: a file system that takes none reads all the same.
    let _ = rustix::fs::fadvise(file, offset, NonZeroU64::new(bytes as u64), rustix::fs::Advice::WillNeed);
}

#[cfg(not(target_os = "linux"))]
fn announce(_: &File, _: u64, _: usize) {}

#[cfg(unix)]
fn read_exact_at(file: &File, into: &mut [u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, into, offset)
}

#[cfg(unix)]
fn write_all_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, offset)
}

#[cfg(windows)]
fn read_exact_at(file: &File, mut into: &mut [u8], mut offset: u64) -> io::Result<()> {
    while !into.is_empty() {
        match std::os::windows::fs::FileExt::seek_read(file, into, offset)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => {
                into = &mut into[read..];
                offset += read as u64;
            }
        }
    }
    Ok(())
}

#[cfg(windows)]
fn write_all_at(file: &File, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        match std::os::windows::fs::FileExt::seek_write(file, bytes, offset)? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            written => {
                bytes = &bytes[written..];
                offset += written as u64;
            }
        }
    }
    Ok(())
}
