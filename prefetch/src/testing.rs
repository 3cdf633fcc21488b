//! Tiers and media for tests, with contents and failures that the test chooses.

mod fake;
mod rng;
#[cfg(feature = "disk")]
mod volume;

pub use fake::{FakeTier, Fault};
pub use rng::Rng;
#[cfg(feature = "disk")]
pub use volume::{DiskFaults, SimVolume};
