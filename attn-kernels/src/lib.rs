#![cfg_attr(feature = "gpu", doc = include_str!("../README.md"))]
#![cfg_attr(not(feature = "gpu"), doc = "Paged attention kernels in WGSL.")]
#![deny(unsafe_code)]

#[macro_use]
mod bindings;
#[macro_use]
pub mod declare;
#[cfg(any(feature = "cpu", feature = "gpu"))]
mod cast;
mod catalog;
#[cfg(feature = "cpu")]
pub mod cpu;
#[cfg(feature = "gpu")]
pub mod gpu;
mod interface;
pub mod kernel;
#[cfg(feature = "gpu")]
pub mod launch;
mod level;
mod modules;
mod named_variant;
pub mod profile;
#[cfg(feature = "reflect")]
pub mod reflect;
pub mod rows;
#[cfg(feature = "self-test")]
pub mod self_test;
mod sizes;
pub mod slot;
pub mod source;
pub mod split;
mod variant;
pub mod verdicts;

pub use catalog::{catalog, variants, variants_of};
pub use interface::{Access, Binding, Field, Params, ParamsLayout, WINDOW_BYTES};
pub use level::Level;
pub use modules::MODULES;
pub use named_variant::NamedVariant;
pub use variant::{Grid, Kernel, KernelRole, TextLength, Variant};
