#![cfg_attr(feature = "gpu", doc = include_str!("../README.md"))]
#![cfg_attr(not(feature = "gpu"), doc = "Paged attention kernels in WGSL and their CPU references.")]
#![deny(unsafe_code)]

mod catalog;
pub mod cpu;
#[cfg(feature = "gpu")]
pub mod gpu;
pub mod kernel;
mod level;
#[cfg(feature = "reflect")]
pub mod reflect;
#[cfg(feature = "self-test")]
pub mod self_test;
pub mod source;
mod variant;

pub use catalog::{MODULES, NamedVariant, catalog, variants, variants_of};
pub use level::Level;
pub use variant::{Access, Kernel, Variant};
