//! Notices steps that take too long.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::{Ended, Health};
use crate::{Note, Notes};

/// Reports of the engine's thread on its steps.
#[derive(Debug)]
pub(super) struct Watched {
    opened: Instant,
    /// Start of the current step, in nanoseconds since `opened`; 0 if no step runs.
    begun: AtomicU64,
    reopening: AtomicBool,
    stalls: AtomicU64,
}

impl Default for Watched {
    fn default() -> Self {
        let (begun, stalls) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { opened: Instant::now(), begun, reopening: AtomicBool::new(false), stalls }
    }
}

impl Watched {
    /// Runs a step.
    pub(super) fn step<T>(&self, step: impl FnOnce() -> T) -> T {
        let now = u64::try_from(self.opened.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.begun.store(now.max(1), Ordering::Relaxed);
        let result = step();
        self.begun.store(0, Ordering::Relaxed);
        result
    }

    /// Records whether the engine is being reopened.
    pub(super) fn reopen(&self, reopening: bool) {
        self.reopening.store(reopening, Ordering::Relaxed);
    }

    pub(super) fn step_time(&self) -> Option<Duration> {
        let begun = Some(self.begun.load(Ordering::Relaxed)).filter(|begun| *begun > 0)?;
        Some(self.opened.elapsed().saturating_sub(Duration::from_nanos(begun)))
    }

    pub(super) fn num_stalls(&self) -> u64 {
        self.stalls.load(Ordering::Relaxed)
    }

    pub(super) fn health(&self, limit: Option<Duration>) -> Health {
        let stalls = |limit| self.step_time().is_some_and(|time| time > limit);
        match limit {
            _ if self.reopening.load(Ordering::Relaxed) => Health::Reopening,
            Some(limit) if stalls(limit) => Health::Stalled,
            _ => Health::Well,
        }
    }
}

/// Watches the engine's thread from another one, because a thread that waits for a device cannot report it.
pub(super) struct Watchdog {
    pub(super) limit: Duration,
    pub(super) notes: Notes,
    pub(super) ended: Ended,
}

impl Watchdog {
    /// Tells and counts each step that takes too long, until the engine ends.
    pub(super) fn run(self, watched: &Watched) {
        let pause = (self.limit / 4).clamp(Duration::from_millis(1), Duration::from_secs(1));
        let mut told = 0;
        while !self.ended.is_over() {
            sleep(pause);
            let begun = watched.begun.load(Ordering::Relaxed);
            let time = watched.step_time().filter(|time| *time > self.limit && begun != told);
            if let Some(time) = time {
                told = begun;
                watched.stalls.fetch_add(1, Ordering::Relaxed);
                self.notes.tell(&Note::StepStalled { seconds: time.as_secs_f64() });
            }
        }
    }
}
