//! State of the events of the live page: its watchers, and their last event.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::response::sse;
use pagoda::SeqId;
use tokio::sync::watch;

/// Events for the watchers of the live page.
#[derive(Debug, Default)]
pub(crate) struct Feed(Mutex<Watchers>);

/// All clients that watch the live page.
#[derive(Debug, Default)]
pub(crate) struct Watchers {
    /// Sender of events to all watchers; `None` while there are none.
    pub(crate) latest: Option<watch::Sender<Told>>,
    /// Sequences that watchers have chosen.
    pub(crate) chosen: Vec<(u64, SeqId)>,
    /// Id of the next watcher.
    pub(crate) next: u64,
}

/// The last event; `None` before the first one.
pub(crate) type Told = Option<Arc<sse::Event>>;

impl Feed {
    pub(crate) fn watchers(&self) -> MutexGuard<'_, Watchers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sequences that watchers have chosen, ascending and without duplicates.
    pub(crate) fn chosen(&self) -> Vec<SeqId> {
        let mut chosen: Vec<SeqId> = self.watchers().chosen.iter().map(|(_, seq)| *seq).collect();
        chosen.sort_unstable();
        chosen.dedup();
        chosen
    }
}
