//! Paged attention kernels in WGSL, their CPU references, and a small wgpu runtime to run them.
#![deny(unsafe_code)]

mod catalog;
pub mod cpu;
#[cfg(feature = "gpu")]
pub mod gpu;
pub mod kernel;
mod level;
#[cfg(feature = "reflect")]
pub mod reflect;
pub mod source;
mod variant;

pub use catalog::{MODULES, NamedVariant, catalog, variants};
pub use level::Level;
pub use variant::{Access, Kernel, Variant};
