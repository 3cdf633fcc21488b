//! Tiers and media for tests: what they hold and how they fail is chosen by the test.

mod fake;
mod rng;
#[cfg(feature = "disk")]
mod volume;

pub use fake::{FakeTier, Fault};
pub use rng::Rng;
#[cfg(feature = "disk")]
pub use volume::{DiskFaults, SimVolume};
