//! libFuzzer round the target that `FUZZ_TARGET` names. `fuzz/run` builds and starts it.

#![no_main]

mod http;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use libfuzzer_sys::fuzz_target;
use pagoda_fuzz::{TARGETS, Target};

/// Bytes that one allocation may have: the target's, once it is known.
static MAX_BYTES: AtomicUsize = AtomicUsize::new(usize::MAX);

static TARGET: LazyLock<Target> = LazyLock::new(|| {
    let name = std::env::var("FUZZ_TARGET").unwrap_or_default();
    let http = Target { name: "http", run: http::run };
    MAX_BYTES.store(if name == "template" { 2 << 30 } else { 256 << 20 }, Ordering::Relaxed);
    let found = TARGETS.into_iter().chain([http]).find(|target| target.name == name);
    found.unwrap_or_else(|| panic!("FUZZ_TARGET={name:?} is none of the targets"))
});

fuzz_target!(|bytes: &[u8]| {
    (TARGET.run)(bytes);
});

/// Ends the process where an input makes a reader ask for memory that no input has reason for. Chat templates have a limit of
/// 1 GiB for all that they make.
struct Bounded;

#[global_allocator]
static BOUNDED: Bounded = Bounded;

fn check(bytes: usize) {
    if bytes > MAX_BYTES.load(Ordering::Relaxed) {
        eprintln!("an allocation of {bytes} bytes");
        std::process::abort();
    }
}

// SAFETY: every call goes to the system allocator unchanged, or the process ends.
unsafe impl GlobalAlloc for Bounded {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        check(layout.size());
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        check(layout.size());
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        check(bytes);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.realloc(at, layout, bytes) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(at, layout) }
    }
}
