//! The modules that texts of kernels share; `build.rs` reads them from their folder.

use crate::source::Modules;

/// The shared modules: kernels of other crates may import them too.
pub const MODULES: Modules = include!(concat!(env!("OUT_DIR"), "/modules.rs"));
