//! The files that a disk tier and a spill are made of: files of a folder, or simulated ones.

use std::io;

/// Mode in which a file is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Open for reading; the file must exist.
    Read,
    /// Open for reading and writing; the file must exist.
    Write,
    /// Open for reading and writing; a missing file is created.
    Create,
    /// Open for reading and writing, as an empty file that replaces any other of that name.
    Replace,
}

/// A flat set of files that no other process writes.
///
/// Names and contents survive a crash of the process at once, and a crash of the machine once they were synced.
pub trait Volume: Send + Sync {
    /// Whether files can be written at all.
    fn is_writable(&self) -> bool;

    /// Opens a file. `bulk` announces large reads that are seldom repeated.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] for a file that must exist and does not, or the failure of the medium.
    fn open(&self, name: &str, access: Access, bulk: bool) -> io::Result<Box<dyn VolumeFile>>;

    /// Renames a file, and replaces any file of the new name.
    ///
    /// # Errors
    /// The failure of the medium; the names are as before then.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Makes the names of files survive a crash of the machine.
    ///
    /// # Errors
    /// The failure of the medium.
    fn sync_names(&self) -> io::Result<()>;
}

/// An open file, read and written in place at any position by any thread.
pub trait VolumeFile: Send + Sync {
    /// Reads bytes from `offset` on, at least one if the file has any there.
    ///
    /// # Errors
    /// The failure of the medium.
    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Writes bytes from `offset` on, at least one.
    ///
    /// # Errors
    /// [`io::ErrorKind::StorageFull`], or the failure of the medium.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize>;

    /// Size in bytes.
    ///
    /// # Errors
    /// The failure of the medium.
    fn size(&self) -> io::Result<u64>;

    /// Makes the file at least `bytes` long, with zeros at its end, and reserves the disk space for them now.
    ///
    /// # Errors
    /// [`io::ErrorKind::StorageFull`], or the failure of the medium.
    fn reserve(&self, bytes: u64) -> io::Result<()>;

    /// Makes all writes survive a crash of the machine.
    ///
    /// # Errors
    /// The failure of the medium. Bytes written since the last success may be lost then, whatever a later call
    /// says.
    fn sync(&self) -> io::Result<()>;
}

/// Fills `into` from `offset` on.
pub(crate) fn read_exact(file: &dyn VolumeFile, mut into: &mut [u8], mut offset: u64) -> io::Result<()> {
    while !into.is_empty() {
        match file.read_at(into, offset) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => {
                into = &mut into[read..];
                offset += read as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Writes all of `bytes` from `offset` on.
pub(crate) fn write_all(file: &dyn VolumeFile, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        match file.write_at(bytes, offset) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => {
                bytes = &bytes[written..];
                offset += written as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
