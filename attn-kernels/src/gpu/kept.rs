//! Compiled kernels that are kept on disk, if the driver exports them.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use xxhash_rust::xxh3::Xxh3Default;

use super::{Gpu, pipeline};

/// A driver's cache of the compiled kernels of a device, and the file that keeps it between runs of the program.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) cache: wgpu::PipelineCache,
    path: PathBuf,
    /// Adapter, driver and program that the file is valid for.
    of: String,
    /// Checksum of the current file.
    saved: Mutex<Option<u128>>,
}

/// Maximum size of a file that is read: drivers keep some megabytes.
const MAX_BYTES: u64 = 256 << 20;

/// Number of bytes of the checksum with which a file begins.
const CHECKSUM: usize = 16;

impl Kept {
    /// Opens the cache of an adapter in `folder`. The cache is empty if its file is missing or was not written by
    /// this program under this driver. Returns `None` if the driver exports nothing.
    pub(super) fn open(folder: &Path, device: &wgpu::Device, info: &wgpu::AdapterInfo) -> Option<Self> {
        let path = folder.join(wgpu::util::pipeline_cache_key(info)?);
        let wgpu::AdapterInfo { name, driver, driver_info, .. } = info;
        let of = format!("{name}\n{driver}\n{driver_info}\n{}", env!("CARGO_PKG_VERSION"));
        let data = read(&path, &of);
        let saved = Mutex::new(data.as_ref().map(|data| checksum(&of, data)));
        Some(Self { cache: pipeline::kept(device, data.as_deref()), path, of, saved })
    }

    /// Writes the file if the cache changed, and returns whether the file was written.
    fn save(&self) -> io::Result<bool> {
        let Some(data) = self.cache.get_data() else { return Ok(false) };
        let sum = checksum(&self.of, &data);
        let mut saved = self.saved.lock().unwrap_or_else(PoisonError::into_inner);
        if *saved == Some(sum) {
            return Ok(false);
        }
        write(&self.path, sum, &data)?;
        *saved = Some(sum);
        Ok(true)
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        // A cache that cannot be written costs time alone.
        let _ = self.save();
    }
}

fn checksum(of: &str, data: &[u8]) -> u128 {
    let mut hash = Xxh3Default::new();
    hash.update(of.as_bytes());
    hash.update(&[0]);
    hash.update(data);
    hash.digest128()
}

/// Returns the data of a file if they are complete and were written for this adapter, driver and program.
fn read(path: &Path, of: &str) -> Option<Vec<u8>> {
    if fs::metadata(path).ok()?.len() > MAX_BYTES {
        return None;
    }
    let mut file = fs::read(path).ok()?;
    let sum = file.first_chunk::<CHECKSUM>().map(|sum| u128::from_le_bytes(*sum))?;
    file.drain(..CHECKSUM);
    (checksum(of, &file) == sum).then_some(file)
}

/// Replaces a file by renaming, so that another process finds either the old one or the new one.
fn write(path: &Path, sum: u128, data: &[u8]) -> io::Result<()> {
    fs::create_dir_all(path.parent().unwrap_or(Path::new(".")))?;
    let new = path.with_extension(format!("{}.new", std::process::id()));
    let written = fs::write(&new, [&sum.to_le_bytes(), data].concat()).and_then(|()| fs::rename(&new, path));
    if written.is_err() {
        let _ = fs::remove_file(&new);
    }
    written
}

impl Gpu {
    /// Writes the driver's compiled kernels to the folder of [`GpuOptions::kernel_cache`](super::GpuOptions) if they
    /// changed, and returns whether they did. Kernels that are still being compiled are left out. A device that is
    /// dropped also writes its kernels.
    ///
    /// # Errors
    /// Those of writing; the file that was there stays.
    pub fn keep_kernels(&self) -> io::Result<bool> {
        self.kept.as_ref().map_or(Ok(false), |kept| kept.save())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_whole_and_of_this_driver_or_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new").join("kernels");
        assert_eq!(read(&path, "a"), None);
        let data: Vec<u8> = (0..200).collect();
        write(&path, checksum("a", &data), &data).unwrap();
        assert_eq!(read(&path, "a").as_ref(), Some(&data));
        assert_eq!(read(&path, "another driver"), None);
        let whole = fs::read(&path).unwrap();
        for bytes in [0, 15, 16, whole.len() - 1] {
            fs::write(&path, &whole[..bytes]).unwrap();
            assert_eq!(read(&path, "a"), None, "{bytes} bytes");
        }
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            fs::write(&path, damaged).unwrap();
            assert_eq!(read(&path, "a"), None, "byte {at}");
        }
        fs::write(&path, [&whole[..], &[0]].concat()).unwrap();
        assert_eq!(read(&path, "a"), None);
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_an_error_and_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kernels");
        fs::create_dir(&path).unwrap();
        assert!(write(&path, 0, &[1]).is_err());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
