//! The system's `pwrite`, replaced for this test program: slabs and index are written through it and nothing else,
//! so a test chooses the byte at which the process dies or the disk is full.
//!
//! The linker prefers a definition in the program to that of the C library, for the standard library too.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, RawFd};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::process::{Signal, getpid, kill_process};

/// Place and manner in which this process is to die.
pub(crate) struct Death {
    /// Bytes that are still written to the files below.
    pub(crate) at_byte: u64,
    /// Whether these are the slabs, or the index.
    pub(crate) in_slab: bool,
    /// Takes the name of the file that the next byte was meant for.
    pub(crate) notice: PathBuf,
}

/// Set in a process that dies.
pub(crate) static DEATH: OnceLock<Death> = OnceLock::new();
static WRITTEN: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// Bytes that writes of this thread find room for in slabs; the index has room for all its records.
    pub(crate) static ROOM: Cell<u64> = const { Cell::new(u64::MAX) };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pwrite(fd: RawFd, bytes: *const u8, count: usize, offset: i64) -> isize {
    // SAFETY: callers of the system's `pwrite` promise an open file and `count` readable bytes.
    let (file, bytes) = unsafe { (BorrowedFd::borrow_raw(fd), std::slice::from_raw_parts(bytes, count)) };
    let written = write(file, bytes, offset.cast_unsigned());
    written.map_or_else(
        |error| {
            // SAFETY: the C library gives each thread its own `errno`.
            unsafe { *__errno_location() = error.raw_os_error() };
            -1
        },
        |written| isize::try_from(written).expect("no more than a slice holds"),
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pwrite64(fd: RawFd, bytes: *const u8, count: usize, offset: i64) -> isize {
    // SAFETY: as above.
    unsafe { pwrite(fd, bytes, count, offset) }
}

unsafe extern "C" {
    safe fn __errno_location() -> *mut i32;
}

/// `rustix` calls the kernel without the C library, so this does not call itself.
fn write(file: BorrowedFd<'_>, bytes: &[u8], offset: u64) -> rustix::io::Result<usize> {
    let is_slab = name_of(file).ends_with(".kv");
    if let Some(death) = DEATH.get().filter(|death| death.in_slab == is_slab) {
        let before = WRITTEN.fetch_add(bytes.len() as u64, Ordering::SeqCst);
        let left = usize::try_from(death.at_byte.saturating_sub(before)).expect("a small number of bytes");
        if left < bytes.len() {
            rustix::io::pwrite(file, &bytes[..left], offset)?;
            die(file, death);
        }
    }
    let room = if is_slab { ROOM.get() } else { u64::MAX };
    let fits = usize::try_from(room).map_or(bytes.len(), |room| room.min(bytes.len()));
    if fits == 0 && !bytes.is_empty() {
        return Err(rustix::io::Errno::NOSPC);
    }
    let written = rustix::io::pwrite(file, &bytes[..fits], offset)?;
    if room != u64::MAX {
        ROOM.set(room - written as u64);
    }
    Ok(written)
}

fn name_of(file: BorrowedFd<'_>) -> String {
    let name = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap_or_default();
    name.to_string_lossy().into_owned()
}

fn die(file: BorrowedFd<'_>, death: &Death) -> ! {
    let told: io::Result<()> = std::fs::write(&death.notice, name_of(file));
    told.expect("the notice is written");
    kill_process(getpid(), Signal::KILL).expect("a process may kill itself");
    // The signal may come to another thread first.
    loop {
        std::thread::park();
    }
}
