//! The waiting side of a task: blocking with a timeout, or as a future on any executor.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::Shared;
use super::board::{Settled, TaskKey, TaskOutcome};
use crate::clock::Clock;
use crate::counters::Counters;
use crate::sync::lock;

/// Slot in which a worker stores the outcome of a task.
#[derive(Default)]
pub(super) struct Slot {
    state: Mutex<SlotState>,
    settled: Condvar,
}

#[derive(Default)]
struct SlotState {
    settled: Option<Settled>,
    waker: Option<Waker>,
    /// Time that the consumer has been blocked on this task so far.
    waited: Duration,
    /// Time of the first poll that found the task unfinished.
    pending_since: Option<Duration>,
    counted: bool,
}

impl Slot {
    pub(super) fn settle(&self, settled: Settled) {
        let mut state = lock(&self.state);
        state.settled = Some(settled);
        let waker = state.waker.take();
        drop(state);
        self.settled.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl SlotState {
    /// The outcome, or `None` while the task runs. The first call that returns it adds the transfer to the counters.
    fn outcome(&mut self, counters: &Counters, clock: &dyn Clock) -> Option<TaskOutcome> {
        let settled = self.settled.as_ref()?;
        if !self.counted {
            self.counted = true;
            if let Some(since) = self.pending_since {
                self.waited += clock.now() - since;
            }
            counters.transfer(settled.transfer, self.waited);
            if let Some(tier) = settled.last_tier {
                counters.waited(tier, self.waited);
            }
        }
        Some(settled.outcome.clone())
    }
}

/// A submitted task. Call [`Handle::wait`] or `.await` it; both return how it ended.
///
/// Dropping the handle does not cancel the task: the blocks still reach the cache. [`Handle::cancel`] does.
pub struct Handle {
    pub(super) key: TaskKey,
    pub(super) slot: Arc<Slot>,
    pub(super) counters: Arc<Counters>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) engine: Weak<Shared>,
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle")
            .field("key", &self.key)
            .field("is_settled", &self.is_settled())
            .finish_non_exhaustive()
    }
}

impl Handle {
    /// The task.
    #[must_use]
    pub fn key(&self) -> TaskKey {
        self.key
    }

    /// Whether the task has ended, successfully or not.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        lock(&self.slot.state).settled.is_some()
    }

    /// Blocks until the task ends or `timeout` passes. After [`TaskOutcome::Timeout`], the task goes on and can be waited
    /// for again.
    #[must_use]
    pub fn wait(&self, timeout: Duration) -> TaskOutcome {
        let start = self.clock.now();
        let state = lock(&self.slot.state);
        let (mut state, _) = self
            .slot
            .settled
            .wait_timeout_while(state, timeout, |state| state.settled.is_none())
            .unwrap_or_else(PoisonError::into_inner);
        if !state.counted {
            state.waited += self.clock.now() - start;
        }
        state.outcome(&self.counters, &*self.clock).unwrap_or(TaskOutcome::Timeout)
    }

    /// Cancels the task if it has not ended and no newer generation has replaced it.
    pub fn cancel(&self) {
        if let Some(engine) = self.engine.upgrade() {
            engine.cancel(self.key.seq, Some(self.key.generation));
        }
    }
}

impl Future for Handle {
    type Output = TaskOutcome;

    /// Resolves when the task ends; never to [`TaskOutcome::Timeout`].
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<TaskOutcome> {
        let mut state = lock(&self.slot.state);
        if let Some(outcome) = state.outcome(&self.counters, &*self.clock) {
            return Poll::Ready(outcome);
        }
        state.pending_since.get_or_insert_with(|| self.clock.now());
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for Handle {
    /// Counts the transfer of an ended task as completely hidden, if no caller waited for it.
    fn drop(&mut self) {
        let _ = lock(&self.slot.state).outcome(&self.counters, &*self.clock);
    }
}
