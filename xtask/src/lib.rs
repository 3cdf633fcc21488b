//! The command line of Pagoda, `cargo xtask`: it sets a machine up, assembles the engine from the other crates,
//! and runs tests and measurements.

pub mod beams;
pub mod bench;
pub mod block_ops;
pub mod ci;
pub mod cli;
pub mod default_model;
pub mod doctor;
pub mod engine;
pub mod error_chain;
pub mod generate;
pub mod ids_file;
pub mod interrupt;
pub mod kernels;
pub mod kv_used;
pub mod model;
pub mod references;
pub mod report;
pub mod score;
pub mod select;
pub mod self_test;
pub mod setup;
pub mod test;
pub mod text;
pub mod tiers;
pub mod tree;
pub mod verdicts;

/// The README's example, run as a documentation test.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
pub struct Readme;
