//! A Vulkan loader that stands before the system's one and passes all calls on, except that submissions answer "device lost"
//! while the file that `PAGODA_LOSE_DEVICE` names is there; one with the text "once" is gone with the first such answer.
//! `device_lost.rs` compiles it to a library by itself.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::transmute;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

type Function = *mut c_void;
type GetProcAddr = unsafe extern "C" fn(handle: *mut c_void, name: *const c_char) -> Function;
type Submit = unsafe extern "C" fn(queue: *mut c_void, count: u32, infos: *const c_void, fence: u64) -> c_int;

const NOW: c_int = 2;
const DEVICE_LOST: c_int = -4;

static INSTANCE: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
static DEVICE: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
static SUBMIT: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

unsafe extern "C" {
    fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// # Safety
/// As Vulkan's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vkGetInstanceProcAddr(instance: *mut c_void, name: *const c_char) -> Function {
    // SAFETY: the system's function has this type, and callers keep Vulkan's rules.
    unsafe {
        if INSTANCE.load(Ordering::SeqCst).is_null() {
            // The system's loader by its path: by its name, it would be this one.
            let path = std::env::var("PAGODA_VULKAN").expect("the path of the system's loader") + "\0";
            let library = dlopen(path.as_ptr().cast(), NOW);
            assert!(!library.is_null(), "{path} does not load");
            INSTANCE.store(dlsym(library, c"vkGetInstanceProcAddr".as_ptr()), Ordering::SeqCst);
        }
        let next: GetProcAddr = transmute(INSTANCE.load(Ordering::SeqCst));
        let function = next(instance, name);
        if function.is_null() || CStr::from_ptr(name) != c"vkGetDeviceProcAddr" {
            return function;
        }
        DEVICE.store(function, Ordering::SeqCst);
        get_device_proc_addr as GetProcAddr as Function
    }
}

unsafe extern "C" fn get_device_proc_addr(device: *mut c_void, name: *const c_char) -> Function {
    // SAFETY: as above.
    unsafe {
        let next: GetProcAddr = transmute(DEVICE.load(Ordering::SeqCst));
        let function = next(device, name);
        if function.is_null() || CStr::from_ptr(name) != c"vkQueueSubmit" {
            return function;
        }
        SUBMIT.store(function, Ordering::SeqCst);
        submit as Submit as Function
    }
}

unsafe extern "C" fn submit(queue: *mut c_void, count: u32, infos: *const c_void, fence: u64) -> c_int {
    if is_lost() {
        return DEVICE_LOST;
    }
    // SAFETY: as above.
    unsafe {
        let next: Submit = transmute(SUBMIT.load(Ordering::SeqCst));
        next(queue, count, infos, fence)
    }
}

fn is_lost() -> bool {
    let Some(file) = std::env::var_os("PAGODA_LOSE_DEVICE") else { return false };
    let Ok(text) = std::fs::read_to_string(&file) else { return false };
    text != "once" || std::fs::remove_file(&file).is_ok()
}
