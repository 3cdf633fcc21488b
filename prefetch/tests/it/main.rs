//! The rules of all tiers for each tier, and the engine, planner and codecs without any.

mod conformance;
#[cfg(feature = "disk")]
mod disk;
mod examples;
mod interleavings;
#[cfg(feature = "disk")]
mod mutated;
mod pure;
#[cfg(feature = "remote")]
mod remote;
#[cfg(feature = "s3")]
mod s3;
#[cfg(feature = "disk")]
mod simulation;
mod time;
