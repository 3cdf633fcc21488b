//! The command line of Pagoda, `cargo xtask`: it sets a machine up, runs the engine of the crate `pagoda`, tests and
//! measurements.

pub mod bench;
pub mod ci;
pub mod cli;
pub mod default_model;
pub mod doctor;
pub mod generate;
pub mod ids_file;
pub mod interrupt;
pub mod kernels;
pub mod model;
pub mod references;
pub mod report;
pub mod score;
pub mod select;
pub mod self_test;
pub mod setup;
pub mod test;
pub mod tree;

/// The README's example, run as a documentation test.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
pub struct Readme;
