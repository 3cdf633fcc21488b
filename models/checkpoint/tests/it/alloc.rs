//! The largest single allocation of a call: what a hostile header could make a reader ask for.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

struct Watched;

#[global_allocator]
static WATCHED: Watched = Watched;

thread_local! {
    static LARGEST: Cell<usize> = const { Cell::new(0) };
}

fn note(bytes: usize) {
    LARGEST.with(|largest| largest.set(largest.get().max(bytes)));
}

// SAFETY: every call goes to the system allocator unchanged; noting the size allocates nothing.
unsafe impl GlobalAlloc for Watched {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        note(bytes);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.realloc(at, layout, bytes) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(at, layout) }
    }
}

/// Returns the result of `call`, and the bytes of its largest allocation on this thread.
pub(crate) fn largest<T>(call: impl FnOnce() -> T) -> (T, usize) {
    LARGEST.set(0);
    let result = call();
    (result, LARGEST.get())
}
