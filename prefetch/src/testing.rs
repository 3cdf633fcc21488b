//! Tiers and media for tests: what they hold and how they fail is chosen by the test.

mod dice;
mod fake;
#[cfg(feature = "disk")]
mod volume;

pub use dice::Dice;
pub use fake::{FakeTier, Fault};
#[cfg(feature = "disk")]
pub use volume::{DiskFaults, SimVolume};
