//! Paged attention kernels in WGSL, their CPU references, and a small wgpu runtime to run them.
#![deny(unsafe_code)]

mod catalog;
#[cfg(feature = "gpu")]
pub mod gpu;
pub mod kernel;
pub mod source;
mod variant;

pub use catalog::{MODULES, catalog};
pub use variant::{Access, Kernel, Variant};
