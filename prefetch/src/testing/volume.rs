//! A simulated disk: short and failing calls, full disks, partial writes, killed processes and power losses.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex};

use super::rng::Rng;
use crate::sync::lock;
use crate::tier::{Access, Volume, VolumeFile};

/// Number of bytes that a disk writes as a unit: after a power loss, a sector has either its old or its new contents.
const SECTOR_BYTES: usize = 512;

/// Rates of faults, each per 1,000 calls.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct DiskFaults {
    /// Rate of reads and writes that move only part of the bytes.
    pub short: u16,
    /// Rate of calls that are interrupted and must be repeated.
    pub interrupted: u16,
    /// Rate of reads that fail.
    pub read: u16,
    /// Rate of writes that fail after part of the bytes.
    pub write: u16,
    /// Rate of syncs that fail. The bytes since the last successful sync then stay unsynced permanently.
    pub sync: u16,
    /// Rate of calls to open or rename a file that fail.
    pub open: u16,
    /// Rate of reads with a flipped bit.
    pub flip: u16,
}

/// Files in memory that fail like files on a disk. All clones of a volume share its files. Equal seeds and equal
/// calls give equal failures.
#[derive(Clone)]
pub struct SimVolume {
    disk: Arc<Mutex<Disk>>,
}

type Names = BTreeMap<String, usize>;
type SyncHook = Arc<dyn Fn(&str) + Send + Sync>;
type ReadHook = Arc<dyn Fn(&str, u64) + Send + Sync>;

struct Disk {
    rng: Rng,
    faults: DiskFaults,
    /// Maximum number of bytes of all files together.
    capacity: u64,
    writable: bool,
    names: Names,
    /// File names after the last sync, and file names after each later change.
    unsynced_names: Vec<Names>,
    files: Vec<Contents>,
    /// Number of bytes that the simulated process can still write before it dies; `None` for no limit.
    fuse: Option<u64>,
    is_dead: bool,
    after_sync: Option<SyncHook>,
    before_read: Option<ReadHook>,
}

/// A file: its visible contents, and the contents after a power loss.
#[derive(Default)]
struct Contents {
    seen: Vec<u8>,
    synced: Vec<u8>,
    /// Sectors that were written since the last sync.
    dirty: BTreeSet<usize>,
    /// Number of bytes that are reserved for the file.
    reserved: u64,
}

impl fmt::Debug for SimVolume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimVolume")
            .field("capacity", &lock(&self.disk).capacity)
            .field("faults", &lock(&self.disk).faults)
            .finish_non_exhaustive()
    }
}

impl SimVolume {
    /// An empty disk of `capacity` bytes without faults.
    #[must_use]
    pub fn new(seed: u64, capacity: u64) -> Self {
        let disk = Disk {
            rng: Rng::new(seed),
            faults: DiskFaults::default(),
            capacity,
            writable: true,
            names: Names::new(),
            unsynced_names: vec![Names::new()],
            files: Vec::new(),
            fuse: None,
            is_dead: false,
            after_sync: None,
            before_read: None,
        };
        Self { disk: Arc::new(Mutex::new(disk)) }
    }

    /// Changes the rates of failures.
    pub fn set_faults(&self, faults: DiskFaults) {
        lock(&self.disk).faults = faults;
    }

    /// Changes the size of the disk.
    pub fn set_capacity(&self, capacity: u64) {
        lock(&self.disk).capacity = capacity;
    }

    /// Makes the disk read-only, or writable again.
    pub fn set_writable(&self, writable: bool) {
        lock(&self.disk).writable = writable;
    }

    /// Calls `hook` with the name of each file that was just synced.
    pub fn after_sync(&self, hook: impl Fn(&str) + Send + Sync + 'static) {
        lock(&self.disk).after_sync = Some(Arc::new(hook));
    }

    /// Calls `hook` before each read, with the file's name and the offset. The hook may block, to simulate a slow
    /// disk.
    pub fn before_read(&self, hook: impl Fn(&str, u64) + Send + Sync + 'static) {
        lock(&self.disk).before_read = Some(Arc::new(hook));
    }

    /// Lets the process die after it has written `bytes` more bytes: every later call fails until [`Self::restart`].
    pub fn kill_after(&self, bytes: u64) {
        lock(&self.disk).fuse = Some(bytes);
    }

    /// Lets the process die now.
    pub fn kill(&self) {
        lock(&self.disk).is_dead = true;
    }

    /// Whether the process has died.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        lock(&self.disk).is_dead
    }

    /// Starts a new process on the files of the last one. If `power_lost`, unsynced sectors and unsynced changes of
    /// names are lost at random.
    pub fn restart(&self, power_lost: bool) {
        let disk = &mut *lock(&self.disk);
        if power_lost {
            let kept = disk.rng.index(disk.unsynced_names.len());
            disk.names = disk.unsynced_names[kept].clone();
            for file in &mut disk.files {
                file.lose_power(&mut disk.rng);
            }
        }
        disk.unsynced_names = vec![disk.names.clone()];
        (disk.fuse, disk.is_dead) = (None, false);
    }

    /// Lets a test change the contents of a file.
    ///
    /// # Panics
    /// When there is no such file.
    pub fn change(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let disk = &mut *lock(&self.disk);
        let file = &mut disk.files[disk.names[name]];
        change(&mut file.seen);
        file.synced.clone_from(&file.seen);
        file.dirty.clear();
    }

    /// Names of the files.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        lock(&self.disk).names.keys().cloned().collect()
    }
}

impl Contents {
    fn write(&mut self, bytes: &[u8], offset: usize) {
        let end = offset + bytes.len();
        if self.seen.len() < end {
            self.seen.resize(end, 0);
        }
        self.seen[offset..end].copy_from_slice(bytes);
        self.dirty.extend(offset / SECTOR_BYTES..end.div_ceil(SECTOR_BYTES));
    }

    /// Moves the dirty sectors that `arrives` selects to the disk.
    fn settle(&mut self, mut arrives: impl FnMut() -> bool) {
        for sector in std::mem::take(&mut self.dirty).into_iter().filter(|_| arrives()) {
            let range = sector * SECTOR_BYTES..((sector + 1) * SECTOR_BYTES).min(self.seen.len());
            if self.synced.len() < range.end {
                self.synced.resize(range.end, 0);
            }
            self.synced[range.clone()].copy_from_slice(&self.seen[range]);
        }
    }

    fn sync(&mut self) {
        self.settle(|| true);
        self.synced.resize(self.seen.len(), 0);
    }

    fn lose_power(&mut self, rng: &mut Rng) {
        self.settle(|| rng.chance(500));
        self.seen.clone_from(&self.synced);
    }
}

impl Disk {
    fn check(&mut self, per_mille: u16) -> io::Result<()> {
        if self.is_dead {
            return Err(io::Error::other("the process is dead"));
        }
        if self.rng.chance(per_mille) { Err(io::Error::other("simulated failure")) } else { Ok(()) }
    }

    /// Like [`Self::check`], for a call that moves bytes and may also be interrupted.
    fn check_move(&mut self, per_mille: u16) -> io::Result<()> {
        let interrupted = !self.is_dead && self.rng.chance(self.faults.interrupted);
        if interrupted { Err(io::ErrorKind::Interrupted.into()) } else { self.check(per_mille) }
    }

    fn moved(&mut self, len: usize) -> usize {
        if len > 1 && self.rng.chance(self.faults.short) { 1 + self.rng.index(len) } else { len }
    }

    /// Number of bytes of all files, including reserved bytes.
    fn used(&self) -> u64 {
        let files = self.names.values().map(|&file| &self.files[file]);
        files.map(|file| file.reserved.max(file.seen.len() as u64)).sum()
    }

    fn write(&mut self, file: usize, bytes: &[u8], offset: u64) -> io::Result<usize> {
        let failed = self.check_move(self.faults.write);
        let mut len = self.moved(bytes.len());
        if let Err(error) = failed {
            if self.is_dead || error.kind() == io::ErrorKind::Interrupted {
                return Err(error);
            }
            len = self.rng.index(len);
            self.put(file, &bytes[..len], offset)?;
            return Err(error);
        }
        if let Some(fuse) = self.fuse {
            let left = usize::try_from(fuse).unwrap_or(usize::MAX).min(len);
            self.fuse = Some(fuse - left as u64);
            if left < len {
                self.put(file, &bytes[..left], offset)?;
                self.is_dead = true;
                return Err(io::Error::other("killed"));
            }
        }
        self.put(file, &bytes[..len], offset)?;
        Ok(len)
    }

    fn put(&mut self, file: usize, bytes: &[u8], offset: u64) -> io::Result<()> {
        let room = self.capacity.saturating_sub(self.used());
        let contents = &mut self.files[file];
        let end = offset + bytes.len() as u64;
        let have = contents.reserved.max(contents.seen.len() as u64);
        if end.saturating_sub(have) > room {
            return Err(io::ErrorKind::StorageFull.into());
        }
        contents.write(bytes, usize::try_from(offset).expect("a small disk"));
        Ok(())
    }
}

impl Volume for SimVolume {
    fn is_writable(&self) -> bool {
        lock(&self.disk).writable
    }

    fn open(&self, name: &str, access: Access, _: bool) -> io::Result<Box<dyn VolumeFile>> {
        let disk = &mut *lock(&self.disk);
        disk.check(disk.faults.open)?;
        if access != Access::Read && !disk.writable {
            return Err(io::ErrorKind::ReadOnlyFilesystem.into());
        }
        let known = disk.names.get(name).copied().filter(|_| access != Access::Replace);
        let file = match known {
            Some(file) => file,
            None if matches!(access, Access::Create | Access::Replace) => {
                disk.files.push(Contents::default());
                disk.names.insert(name.to_owned(), disk.files.len() - 1);
                disk.unsynced_names.push(disk.names.clone());
                disk.files.len() - 1
            }
            None => return Err(io::ErrorKind::NotFound.into()),
        };
        Ok(Box::new(SimFile { disk: self.disk.clone(), file, name: name.to_owned() }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let disk = &mut *lock(&self.disk);
        disk.check(disk.faults.open)?;
        let file = disk.names.remove(from).ok_or(io::ErrorKind::NotFound)?;
        disk.names.insert(to.to_owned(), file);
        disk.unsynced_names.push(disk.names.clone());
        Ok(())
    }

    fn sync_names(&self) -> io::Result<()> {
        let disk = &mut *lock(&self.disk);
        disk.check(disk.faults.sync)?;
        disk.unsynced_names = vec![disk.names.clone()];
        Ok(())
    }
}

struct SimFile {
    disk: Arc<Mutex<Disk>>,
    file: usize,
    name: String,
}

impl VolumeFile for SimFile {
    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        let hook = lock(&self.disk).before_read.clone();
        if let Some(hook) = hook {
            hook(&self.name, offset);
        }
        let disk = &mut *lock(&self.disk);
        disk.check_move(disk.faults.read)?;
        let len = disk.moved(into.len());
        let seen = &disk.files[self.file].seen;
        let start = usize::try_from(offset).expect("a small disk").min(seen.len());
        let len = len.min(seen.len() - start);
        into[..len].copy_from_slice(&seen[start..start + len]);
        if len > 0 && disk.rng.chance(disk.faults.flip) {
            into[disk.rng.index(len)] ^= 1 << disk.rng.below(8);
        }
        Ok(len)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        lock(&self.disk).write(self.file, bytes, offset)
    }

    fn size(&self) -> io::Result<u64> {
        let disk = &mut *lock(&self.disk);
        disk.check(disk.faults.read)?;
        Ok(disk.files[self.file].seen.len() as u64)
    }

    fn reserve(&self, bytes: u64) -> io::Result<()> {
        let disk = &mut *lock(&self.disk);
        disk.check(disk.faults.write)?;
        let have = disk.files[self.file].reserved.max(disk.files[self.file].seen.len() as u64);
        if bytes.saturating_sub(have) > disk.capacity.saturating_sub(disk.used()) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let contents = &mut disk.files[self.file];
        contents.reserved = contents.reserved.max(bytes);
        let len = usize::try_from(bytes).expect("a small disk");
        if contents.seen.len() < len {
            contents.seen.resize(len, 0);
        }
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let hook = {
            let disk = &mut *lock(&self.disk);
            if let Err(error) = disk.check(disk.faults.sync) {
                // The system takes the bytes for written, and does not try again.
                if !disk.is_dead {
                    disk.files[self.file].dirty.clear();
                }
                return Err(error);
            }
            disk.files[self.file].sync();
            disk.after_sync.clone()
        };
        if let Some(hook) = hook {
            hook(&self.name);
        }
        Ok(())
    }
}
