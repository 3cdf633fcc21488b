//! Direct I/O: reads from the disk straight into a buffer, without a copy in the system's page cache.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Mutex;

use crate::sync::lock;

/// Number of bytes to which addresses, offsets and lengths of direct reads are aligned: a multiple of every disk's
/// sector size.
const ALIGN: usize = 4096;

/// Pool of aligned buffers: as many as the largest number of reads that ran at the same time.
#[derive(Default)]
pub(super) struct Direct {
    free: Mutex<Vec<Vec<u8>>>,
}

impl Direct {
    /// Fills `into` with the bytes from `offset` on. Returns false if the file system cannot read directly.
    pub(super) fn read_at(&self, file: &File, into: &mut [u8], offset: u64) -> io::Result<bool> {
        // The surrounding range of whole units.
        let before = usize::try_from(offset % ALIGN as u64).expect("less than a page");
        let len = (before + into.len()).next_multiple_of(ALIGN);
        let mut buffer = lock(&self.free).pop().unwrap_or_default();
        if buffer.len() < len + ALIGN {
            buffer = vec![0; len + ALIGN];
        }
        let start = buffer.as_ptr().align_offset(ALIGN);
        let wanted = before..before + into.len();
        let read = read_until(file, &mut buffer[start..start + len], offset - before as u64, wanted.clone());
        if matches!(read, Ok(())) {
            into.copy_from_slice(&buffer[start..start + len][wanted]);
        }
        lock(&self.free).push(buffer);
        match read {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Fills `buffer` at least up to the end of `wanted`. The rest may stay unread, because the file may end there.
fn read_until(file: &File, buffer: &mut [u8], offset: u64, wanted: Range<usize>) -> io::Result<()> {
    let mut filled = 0;
    while filled < wanted.end {
        match std::os::unix::fs::FileExt::read_at(file, &mut buffer[filled..], offset + filled as u64) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Opens a file for direct reads; `None` if its file system does not support them.
pub(super) fn open(path: &Path) -> io::Result<Option<File>> {
    use std::os::unix::fs::OpenOptionsExt;
    let flags = (rustix::fs::OFlags::DIRECT | rustix::fs::OFlags::NOFOLLOW).bits().cast_signed();
    match std::fs::OpenOptions::new().read(true).custom_flags(flags).open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Ends in the middle of a unit.
    const LEN: usize = 5 * ALIGN + 100;

    proptest! {
        #[test]
        fn ranges_anywhere_are_those_of_the_file(offset in 0..LEN, len in 1..3 * ALIGN, seed: u8) {
            let bytes: Vec<u8> = (0..=250).cycle().map(|byte: u8| byte ^ seed).take(LEN).collect();
            let folder = tempfile::tempdir()?;
            let path = folder.path().join("slab");
            std::fs::write(&path, &bytes)?;
            // Without direct reads there is nothing to test.
            let Some(file) = open(&path)? else { return Ok(()) };
            let direct = Direct::default();
            let mut into = vec![0; len];
            match direct.read_at(&file, &mut into, offset as u64) {
                Ok(read) if offset + len <= LEN => prop_assert!(!read || into == bytes[offset..offset + len]),
                Ok(read) => prop_assert!(!read, "{len} bytes from {offset} of {LEN}"),
                Err(error) => {
                    prop_assert!(offset + len > LEN, "{error}");
                    prop_assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
                }
            }
        }
    }
}
