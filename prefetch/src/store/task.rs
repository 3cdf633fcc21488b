//! Tasks of a store, which streams execute and callers wait for.

use std::sync::{Arc, Condvar, Mutex};

use crate::sync::lock;
use crate::tier::TierError;

/// Blocks that are being saved. [`Store::wait`](super::Store::wait) ends it.
#[derive(Debug)]
pub struct Task {
    pub(super) shared: Arc<TaskShared>,
}

#[derive(Debug)]
pub(super) struct TaskShared {
    pub(super) state: Mutex<TaskState>,
    pub(super) finished: Condvar,
}

#[derive(Debug)]
pub(super) struct TaskState {
    pub(super) remaining: usize,
    /// The failure with the lowest position.
    pub(super) failure: Option<(usize, TierError)>,
}

impl Task {
    pub(super) fn new(jobs: usize) -> Self {
        let state = TaskState { remaining: jobs, failure: None };
        Self { shared: Arc::new(TaskShared { state: Mutex::new(state), finished: Condvar::new() }) }
    }
}

impl TaskShared {
    pub(super) fn finish(&self, position: usize, result: Result<(), TierError>) {
        let mut state = lock(&self.state);
        if let Err(error) = result
            && state.failure.as_ref().is_none_or(|(first, _)| position < *first)
        {
            state.failure = Some((position, error));
        }
        state.remaining -= 1;
        if state.remaining == 0 {
            self.finished.notify_all();
        }
    }
}
