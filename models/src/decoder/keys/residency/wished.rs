//! Layers whose wishes wait to be fetched, for a step that is recorded before it is known whether it is the next one.

use super::{Ahead, Residency};

impl Residency {
    /// Layers whose wishes wait to be fetched.
    pub(in crate::decoder::keys) fn wished(&self) -> Vec<bool> {
        let waits = |resident: &super::Resident| resident.ahead == Ahead::Wished;
        self.layers.iter().map(|layer| layer.as_ref().is_some_and(waits)).collect()
    }

    /// Goes to layers whose wishes wait to be fetched. What else is ahead is of one step alone.
    pub(in crate::decoder::keys) fn set_wished(&mut self, wished: &[bool]) {
        for (resident, wished) in self.layers.iter_mut().zip(wished) {
            let ahead = if *wished { Ahead::Wished } else { Ahead::Nothing };
            resident.iter_mut().for_each(|resident| resident.ahead = ahead);
        }
    }
}
