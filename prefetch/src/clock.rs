//! Time as the remote tier sees it.

use std::time::Duration;
#[cfg(feature = "remote")]
use std::time::Instant;

/// A clock that never goes back.
pub trait Clock: Send + Sync {
    /// Time since some fixed moment.
    fn now(&self) -> Duration;
}

/// The clock of the system, from the moment it was made.
#[cfg(feature = "remote")]
#[derive(Debug)]
pub(crate) struct SystemClock(Instant);

#[cfg(feature = "remote")]
impl SystemClock {
    pub(crate) fn new() -> Self {
        Self(Instant::now())
    }
}

#[cfg(feature = "remote")]
impl Clock for SystemClock {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }
}
