//! The progress of saves: blocks on their way from the device to the KV tiers.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use models::ModelError;

use crate::error_chain;

/// Progress of all saves of blocks to the KV tiers.
#[derive(Default)]
pub(crate) struct SaveProgress {
    state: Mutex<State>,
    pub(crate) idle: Condvar,
}

#[derive(Default)]
pub(crate) struct State {
    /// Number of saves that have begun and not ended.
    pub(crate) open: usize,
    /// Number of saves that have ended.
    pub(crate) ended: u64,
    /// The first error of the device.
    pub(crate) lost: Option<ModelError>,
    /// The first failure of a tier.
    pub(crate) failed: Option<String>,
}

impl SaveProgress {
    /// Locks the state.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts the end of a save, and its failure if it has one.
    pub(crate) fn end(&self, failure: Option<&dyn std::error::Error>) {
        let mut state = self.state();
        state.open -= 1;
        state.ended += 1;
        if let Some(failure) = failure {
            state.failed.get_or_insert_with(|| error_chain::joined(failure));
        }
        self.idle.notify_all();
    }
}

/// The saves that had begun at one moment: blocks on their way to the KV tiers.
#[derive(Clone)]
pub struct Saves {
    progress: Arc<SaveProgress>,
    /// Number of saves that will have ended.
    last: u64,
}

impl Saves {
    /// The saves that have begun so far.
    pub(crate) fn begun(progress: &Arc<SaveProgress>) -> Self {
        let state = progress.state();
        Self { progress: Arc::clone(progress), last: state.ended + state.open as u64 }
    }

    /// Waits until all of these saves have ended, successfully or not, or the given time is over. Returns whether all
    /// have ended.
    #[must_use]
    pub fn wait(&self, limit: Duration) -> bool {
        let waits = |state: &mut State| state.ended < self.last;
        let idle = &self.progress.idle;
        let waited = idle.wait_timeout_while(self.progress.state(), limit, waits);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }
}

impl PartialEq for Saves {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.progress, &other.progress) && self.last == other.last
    }
}

impl fmt::Debug for Saves {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Saves").field("last", &self.last).finish_non_exhaustive()
    }
}
