#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod assemble;
pub mod changes;
pub mod clock;
pub mod codec;
pub mod counters;
pub mod engine;
pub mod failure;
pub mod index;
pub mod plan;
pub mod policy;
mod recency;
pub mod residency;
pub mod spec;
pub mod spill;
pub mod stack;
pub mod store;
mod sync;
#[cfg(feature = "testing")]
pub mod testing;
pub mod tier;
mod volume;

/// Hashes of blocks and ids of sequences, which this crate takes and gives.
pub use kvblock;
