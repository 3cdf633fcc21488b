//! Followers of the KV cache.

use kvblock::CacheEvent;

use super::Engine;
use crate::tiers::Tiers;

impl Engine {
    /// Tells `follower` from now on what the KV cache holds, as [`kv_events`](crate::kv_events) says: the engine calls it at the
    /// end of each step that changed something, with the events oldest first, and waits for it. An engine that is
    /// [reopened](Self::reopen) keeps its followers.
    ///
    /// # Panics
    /// If [the options](crate::EngineOptions::cache_events) record no events.
    pub fn follow(&mut self, follower: impl FnMut(&[CacheEvent]) + Send + 'static) {
        assert!(self.options.cache_events.any(), "nobody can follow an engine without events");
        self.followers.add(follower);
    }

    /// Whether events come while the engine rests: of a host tier that other engines change too.
    pub(crate) fn hears_of_others(&self) -> bool {
        self.tiers.as_ref().is_some_and(Tiers::tell_events)
    }

    /// Tells of the changes since the last call.
    pub(crate) fn tell_followers(&mut self) {
        if self.options.cache_events.any() {
            let mut events = self.scheduler.take_cache_events();
            events.extend(self.tiers.as_mut().map(Tiers::take_events).unwrap_or_default());
            self.followers.tell(&events);
        }
    }

    /// Finishes what is still being saved and tells of it, before the engine waits for requests or ends: after the last one
    /// was cancelled, no step does.
    pub(crate) fn rest(&mut self) {
        if self.options.cache_events.any() {
            // A device that was lost is found so by the next step.
            let _ = self.settle();
            self.tell_followers();
        }
    }
}
