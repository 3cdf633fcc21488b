#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod counters;
pub mod engine;
pub mod index;
pub mod plan;
pub mod policy;
mod recency;
pub mod stack;
pub mod tier;
