//! Pending prefetches, for a step that is encoded before it is known whether it comes next.

use super::{PageProgress, Residency};

impl Residency {
    /// Returns, for each layer, whether a prefetch is pending.
    pub(in crate::decoder::keys) fn pending_prefetches(&self) -> Vec<bool> {
        let waits = |resident: &super::Resident| resident.progress == PageProgress::Listed;
        self.layers.iter().map(|layer| layer.as_ref().is_some_and(waits)).collect()
    }

    /// Restores which layers have a pending prefetch. Other states belong to one step alone.
    pub(in crate::decoder::keys) fn set_pending_prefetches(&mut self, pending_prefetches: &[bool]) {
        for (resident, pending_prefetches) in self.layers.iter_mut().zip(pending_prefetches) {
            let progress = if *pending_prefetches { PageProgress::Listed } else { PageProgress::None };
            resident.iter_mut().for_each(|resident| resident.progress = progress);
        }
    }
}
