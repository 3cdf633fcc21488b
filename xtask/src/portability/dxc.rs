//! Microsoft's DirectX shader compiler: HLSL to DXIL, and its validator.
//!
//! Its interfaces are tables of functions in the manner of COM. Those that are called are declared here, with their places in
//! `dxcapi.h`.

use std::ffi::c_void;
use std::path::Path;
use std::ptr;

use anyhow::{Context, Result, bail};
use libloading::Library;

/// A class or interface, as `dxcapi.h` writes it.
#[repr(C)]
struct Guid(u32, u16, u16, [u8; 8]);

const COMPILER_CLASS: Guid =
    Guid(0x73e2_2d93, 0xe6ce, 0x47f3, [0xb5, 0xbf, 0xf0, 0x66, 0x4f, 0x39, 0xc1, 0xb0]);
const COMPILER: Guid = Guid(0x228b_4687, 0x5a6a, 0x4730, [0x90, 0x0c, 0x97, 0x02, 0xb2, 0x20, 0x3f, 0x54]);
const RESULT: Guid = Guid(0x5834_6cda, 0xdde7, 0x4497, [0x94, 0x61, 0x6f, 0x87, 0xaf, 0x5e, 0x06, 0x59]);
const VALIDATOR_CLASS: Guid =
    Guid(0x8ca3_e215, 0xf728, 0x4cf3, [0x8c, 0xdd, 0x88, 0xaf, 0x91, 0x75, 0x87, 0xa1]);
const VALIDATOR: Guid = Guid(0xa6e8_2bd2, 0x1fd7, 0x4826, [0x98, 0x11, 0x28, 0x57, 0xe7, 0x97, 0xf4, 0x9a]);

type Status = i32;
/// An object: its first word is the address of its table of functions.
type Object = *mut *const *const c_void;
type Create = unsafe extern "C" fn(class: *const Guid, interface: *const Guid, object: *mut Object) -> Status;
type Release = unsafe extern "C" fn(this: Object) -> u32;
type Compile = unsafe extern "C" fn(
    this: Object,
    source: *const Source,
    arguments: *const *const Wide,
    count: u32,
    include: Object,
    interface: *const Guid,
    result: *mut Object,
) -> Status;
type Validate = unsafe extern "C" fn(this: Object, blob: Object, flags: u32, result: *mut Object) -> Status;
type GetStatus = unsafe extern "C" fn(this: Object, status: *mut Status) -> Status;
type GetBlob = unsafe extern "C" fn(this: Object, blob: *mut Object) -> Status;
type GetPointer = unsafe extern "C" fn(this: Object) -> *const c_void;
type GetSize = unsafe extern "C" fn(this: Object) -> usize;

/// A character of the C type `wchar_t`, outside of Windows.
type Wide = u32;

#[repr(C)]
struct Source {
    text: *const c_void,
    bytes: usize,
    encoding: u32,
}

const UTF8: u32 = 65001;

/// Indices in the tables of functions.
const RELEASE: usize = 2;
const COMPILE: usize = 3;
const VALIDATE: usize = 3;
const GET_STATUS: usize = 3;
const GET_RESULT: usize = 4;
const GET_ERRORS: usize = 5;
const GET_POINTER: usize = 3;
const GET_SIZE: usize = 4;

/// A reference to an object, given back at the end.
struct Reference(Object);

impl Reference {
    /// The function at a place of the table.
    ///
    /// # Safety
    /// `F` is its type.
    #[expect(unsafe_code, reason = "tables of functions")]
    unsafe fn function<F>(&self, at: usize) -> F {
        // SAFETY: the object has that many functions, and the caller vouches for the type.
        unsafe { (*self.0).add(at).cast::<F>().read() }
    }
}

impl Drop for Reference {
    #[expect(unsafe_code, reason = "the compiler is called")]
    fn drop(&mut self) {
        // SAFETY: every object counts references, and this one was counted.
        unsafe { self.function::<Release>(RELEASE)(self.0) };
    }
}

/// The compiler and its validator.
pub(super) struct Dxc {
    compiler: Reference,
    validator: Reference,
    _library: Library,
}

impl Dxc {
    /// Loads the library.
    ///
    /// # Errors
    /// If it does not load or lacks one of the two.
    #[expect(unsafe_code, reason = "the compiler is loaded")]
    pub(super) fn open(path: &Path) -> Result<Self> {
        let name = path.display();
        // SAFETY: the library is the compiler, whose one function has this type, and outlives the objects that come from it.
        unsafe {
            let library = Library::new(path).with_context(|| format!("{name} does not load"))?;
            let create = *library
                .get::<Create>(b"DxcCreateInstance")
                .with_context(|| format!("{name} is no DirectX shader compiler"))?;
            let object = |class, interface| {
                let mut object = ptr::null_mut();
                let status = create(class, interface, &raw mut object);
                if status != 0 || object.is_null() {
                    bail!("{name}: no compiler or no validator: {status:#010x}");
                }
                Ok(Reference(object))
            };
            let compiler = object(&COMPILER_CLASS, &COMPILER)?;
            let validator = object(&VALIDATOR_CLASS, &VALIDATOR)?;
            Ok(Self { compiler, validator, _library: library })
        }
    }

    /// Compiles a compute shader and validates the result, as wgpu does on Windows.
    ///
    /// # Errors
    /// The compiler's or the validator's words.
    #[expect(unsafe_code, reason = "the compiler is called")]
    pub(super) fn compile(&self, hlsl: &str, entry: &str) -> Result<()> {
        let arguments = ["-E", entry, "-T", "cs_6_2", "-HV", "2018", "-no-warnings", "-enable-16bit-types"];
        let arguments = arguments.map(|text| text.chars().map(u32::from).chain([0]).collect::<Vec<Wide>>());
        let pointers = arguments.each_ref().map(|text| text.as_ptr());
        let source = Source { text: hlsl.as_ptr().cast(), bytes: hlsl.len(), encoding: UTF8 };
        // SAFETY: functions have the types that `dxcapi.h` gives them at these places, and what they point to outlives the calls.
        unsafe {
            let mut result = ptr::null_mut();
            let count = u32::try_from(pointers.len()).expect("eight");
            let status = self.compiler.function::<Compile>(COMPILE)(
                self.compiler.0,
                &raw const source,
                pointers.as_ptr(),
                count,
                ptr::null_mut(),
                &RESULT,
                &raw mut result,
            );
            let result = outcome("the compiler", status, result)?;
            let blob = result.blob(GET_RESULT).context("the compiler gave no code")?;
            let mut checked = ptr::null_mut();
            let validate = self.validator.function::<Validate>(VALIDATE);
            let status = validate(self.validator.0, blob.0, 0, &raw mut checked);
            outcome("the validator", status, checked).map(drop)
        }
    }
}

impl Reference {
    /// The blob that a function of a result gives.
    ///
    /// # Safety
    /// The object is a result, and the function at this place gives a blob.
    #[expect(unsafe_code, reason = "the compiler is called")]
    unsafe fn blob(&self, at: usize) -> Option<Self> {
        let mut blob = ptr::null_mut();
        // SAFETY: as the caller vouches.
        let status = unsafe { self.function::<GetBlob>(at)(self.0, &raw mut blob) };
        (status == 0 && !blob.is_null()).then_some(Self(blob))
    }
}

/// Converts a status to a result, with the compiler's messages as the error.
///
/// # Safety
/// `result` is null or a result that the caller owns.
#[expect(unsafe_code, reason = "the compiler is called")]
unsafe fn outcome(who: &str, status: Status, result: Object) -> Result<Reference> {
    if status != 0 || result.is_null() {
        bail!("{who} failed: {status:#010x}");
    }
    let result = Reference(result);
    // SAFETY: a result has these functions, and a blob of errors as many bytes as it says.
    unsafe {
        let mut status = 0;
        result.function::<GetStatus>(GET_STATUS)(result.0, &raw mut status);
        if status == 0 {
            return Ok(result);
        }
        let told = result.blob(GET_ERRORS).map(|blob| {
            let text = blob.function::<GetPointer>(GET_POINTER)(blob.0);
            let bytes = blob.function::<GetSize>(GET_SIZE)(blob.0);
            match text.is_null() {
                true => String::new(),
                false => String::from_utf8_lossy(std::slice::from_raw_parts(text.cast(), bytes)).into_owned(),
            }
        });
        let told = told.unwrap_or_default();
        // Warnings come first, and of the validator's errors a title.
        let mut errors =
            told.lines().filter(|line| line.contains("error") && !line.ends_with("validation errors"));
        let error = errors.next().or(told.lines().next()).unwrap_or("it does not say why");
        bail!("{who} refuses it: {error}")
    }
}
