//! Dense kernels of a decoder: parameters, bindings, specialisation, grid. One module a kernel, of the same stem as
//! its `.wgsl` file and its CPU reference.

pub mod embed;
pub mod log_prob;
pub mod matmul;
pub mod rms_norm;
pub mod rope;
pub mod rope_append;
pub mod sample;

use attn_kernels::Kernel;
use attn_kernels::source::Modules;

macro_rules! modules {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../wgsl/shared/", $name, ".wgsl")))),*]
    };
}

/// The shared modules of this crate's kernels.
pub const MODULES: Modules = modules![
    "epilogue_add",
    "epilogue_silu_mul",
    "epilogue_store",
    "weights_bf16",
    "weights_f16",
    "weights_f32",
    "weights_mxfp4",
    "weights_q4",
    "weights_q4k",
    "weights_q5k",
    "weights_q6k",
    "weights_q8",
    "x_broadcast",
    "x_normed",
    "x_uniform",
];

/// Every kernel, by name.
#[must_use]
pub fn catalog() -> Vec<&'static Kernel> {
    vec![
        &embed::KERNEL,
        &log_prob::KERNEL,
        &matmul::KERNEL,
        &rms_norm::KERNEL,
        &rope::KERNEL,
        &rope_append::KERNEL,
        &sample::KERNEL,
    ]
}
