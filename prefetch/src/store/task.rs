//! Tasks of a store: what a caller waits for and the streams fill.

use std::sync::{Arc, Condvar, Mutex};

use crate::sync::lock;
use crate::tier::{TierError, TierName};

/// A running load or dump. [`Store::wait`](super::Store::wait) ends it.
pub struct Task {
    pub(super) shared: Arc<TaskShared>,
}

pub(super) struct TaskShared {
    pub(super) state: Mutex<TaskState>,
    pub(super) finished: Condvar,
}

pub(super) struct TaskState {
    pub(super) remaining: usize,
    /// `[blocks]`, filled by loads.
    pub(super) buffers: Vec<Vec<u8>>,
    /// The failure with the lowest position.
    pub(super) failure: Option<(usize, TierError)>,
    pub(super) last_tier: Option<TierName>,
}

impl Task {
    pub(super) fn new(jobs: usize) -> Self {
        let state =
            TaskState { remaining: jobs, buffers: vec![Vec::new(); jobs], failure: None, last_tier: None };
        Self { shared: Arc::new(TaskShared { state: Mutex::new(state), finished: Condvar::new() }) }
    }
}

impl TaskShared {
    pub(super) fn finish(&self, position: usize, result: Result<(Vec<u8>, Option<TierName>), TierError>) {
        let mut state = lock(&self.state);
        match result {
            Ok((buffer, tier)) => {
                state.buffers[position] = buffer;
                state.last_tier = tier.or(state.last_tier);
            }
            Err(error) if state.failure.as_ref().is_none_or(|(first, _)| position < *first) => {
                state.failure = Some((position, error));
            }
            Err(_) => {}
        }
        state.remaining -= 1;
        if state.remaining == 0 {
            self.finished.notify_all();
        }
    }
}
