//! What an engine tells about itself.

use std::collections::BTreeMap;

use models::Decoder;
use scheduler::Scheduler;

use super::Engine;
use crate::error::Error;
use crate::tiers::{self, Tiers};
use crate::usage::{self, KvUse, TierUse};

impl Engine {
    /// Largest number of KV blocks in use at one time, and their bytes, by cache group.
    #[must_use]
    pub fn kv_use(&self) -> BTreeMap<String, KvUse> {
        usage::kv_use(self.decoder.kv().plan(), &self.kv_used.most)
    }

    /// Traffic of the KV tiers, once they are configured.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn tier_use(&mut self) -> Result<TierUse, Error> {
        let used = self.tiers.as_ref().map(Tiers::traffic).unwrap_or_default();
        if self.fetch_cost.is_none() {
            self.fetch_cost = self.decoder.fetch_cost()?;
        }
        Ok(tiers::with_fetches(used, &self.decoder, self.fetch_cost)?)
    }

    /// Measures device times from the next step on; false if the adapter has no timestamps.
    pub fn time_kernels(&mut self, on: bool) -> bool {
        self.decoder.gpu().time_dispatches(on)
    }

    /// Dispatches and device time in nanoseconds by kernel, since the last call.
    pub fn take_kernel_times(&mut self) -> BTreeMap<&'static str, (u64, f64)> {
        std::mem::take(&mut self.kernel_ns)
    }

    /// The decoder, read-only.
    #[must_use]
    pub fn decoder(&self) -> &Decoder {
        &self.decoder
    }

    /// The scheduler, read-only.
    #[must_use]
    pub fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }
}
