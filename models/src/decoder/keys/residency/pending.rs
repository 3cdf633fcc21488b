//! Layers whose wishes wait to be fetched, for a step that is recorded before it is known whether it is the next one.

use super::{PageProgress, Residency};

impl Residency {
    /// Layers whose wishes wait to be fetched.
    pub(in crate::decoder::keys) fn pending_prefetches(&self) -> Vec<bool> {
        let waits = |resident: &super::Resident| resident.progress == PageProgress::Listed;
        self.layers.iter().map(|layer| layer.as_ref().is_some_and(waits)).collect()
    }

    /// Goes to layers whose wishes wait to be fetched. What else is ahead is of one step alone.
    pub(in crate::decoder::keys) fn set_pending_prefetches(&mut self, pending_prefetches: &[bool]) {
        for (resident, pending_prefetches) in self.layers.iter_mut().zip(pending_prefetches) {
            let progress = if *pending_prefetches { PageProgress::Listed } else { PageProgress::None };
            resident.iter_mut().for_each(|resident| resident.progress = progress);
        }
    }
}
