//! The engine as its handles reach it between two steps.

use std::collections::BTreeMap;
use std::ops::Deref;

use kvblock::SeqId;
use models::FetchCost;

use crate::engine::Engine;
use crate::error::Error;
use crate::live_view::LiveView;
use crate::usage::TierUse;

/// Access to an engine between two steps, as [`EngineHandle::call`](super::EngineHandle::call) provides it: methods
/// that read the engine's state, and calls that take no event from a stream.
///
/// ```compile_fail,E0596
/// # fn step(handle: &pagoda::EngineHandle) {
/// let _ = handle.call(|engine| engine.step()); // the events of this step would reach no stream
/// # }
/// ```
#[derive(Debug)]
pub struct EngineAdmin<'e>(pub(super) &'e mut Engine);

impl Deref for EngineAdmin<'_> {
    type Target = Engine;

    fn deref(&self) -> &Engine {
        self.0
    }
}

impl EngineAdmin<'_> {
    /// Empties the prefix cache, as [`Engine::reset_prefix_cache`] does.
    pub fn reset_prefix_cache(&mut self) -> bool {
        self.0.reset_prefix_cache()
    }

    /// Takes a closer look at the engine, as [`Engine::live_view`] does.
    pub fn live_view(&mut self, watched: &[SeqId]) -> LiveView {
        self.0.live_view(watched)
    }

    /// Measures device times from the next step on, as [`Engine::time_kernels`] does.
    pub fn time_kernels(&mut self, on: bool) -> bool {
        self.0.time_kernels(on)
    }

    /// Takes the device times, as [`Engine::take_kernel_times`] does.
    pub fn take_kernel_times(&mut self) -> BTreeMap<&'static str, (u64, f64)> {
        self.0.take_kernel_times()
    }

    /// Traffic of the KV tiers, as [`Engine::tier_use`] says.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn tier_use(&mut self) -> Result<TierUse, Error> {
        self.0.tier_use()
    }

    /// Cost of fetching selected pages from the host, as [`Engine::fetch_cost`] says.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn fetch_cost(&mut self) -> Result<Option<FetchCost>, Error> {
        self.0.fetch_cost()
    }
}
