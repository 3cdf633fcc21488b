//! Every kernel of this crate and the modules that they share.

use crate::source::Modules;
use crate::{Kernel, kernel};

macro_rules! modules {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../wgsl/shared/", $name, ".wgsl")))),*]
    };
}

/// The shared modules: kernels of other crates may import them too.
pub const MODULES: Modules = modules![
    "flat",
    "keys_broadcast_f16",
    "keys_broadcast_f32",
    "keys_uniform",
    "kv_f16",
    "kv_f32",
    "kv_write_f16",
    "kv_write_f32",
    "numbers",
];

/// Every kernel, by name.
#[must_use]
pub fn catalog() -> Vec<&'static Kernel> {
    vec![
        &kernel::cache_write::KERNEL,
        &kernel::copy_blocks::KERNEL,
        &kernel::lse_merge::KERNEL,
        &kernel::paged_decode::KERNEL,
        &kernel::paged_prefill::KERNEL,
        &kernel::paged_reduce::KERNEL,
    ]
}
