//! Flags of `cargo xtask kernels`.

use std::path::PathBuf;

use clap::Args;

use super::shared;

/// `cargo xtask kernels`.
#[derive(Debug, Clone, Default, Args)]
pub struct KernelsArgs {
    /// Write each composed kernel into this folder as KERNEL.LEVEL.wgsl, with its MSL, HLSL and SPIR-V
    #[arg(long, value_name = "DIR")]
    pub emit: Option<PathBuf>,

    /// Write the cases of the self-test into this folder, with a page that runs them in a browser
    #[arg(long, value_name = "DIR", conflicts_with = "emit")]
    pub cases: Option<PathBuf>,

    /// Run the cases in headless Chromium, whose program may be named, with its software renderer SwiftShader
    #[arg(long, value_name = "PROGRAM", num_args = 0..=1, requires = "cases")]
    pub run: Option<Option<PathBuf>>,

    /// Write the tables of docs/kernels.md from the declarations of the kernels
    #[arg(long, conflicts_with_all = ["emit", "cases", "kernel"])]
    pub write: bool,

    /// Take only the kernels whose name contains this text
    #[arg(long, value_name = "NAME", value_parser = shared::non_empty)]
    pub kernel: Option<String>,
}
