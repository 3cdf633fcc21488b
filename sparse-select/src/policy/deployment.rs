//! Settings of the engine that the parameters of a policy fix.

use derive_setters::Setters;

use crate::SelectError;

/// Settings that published policies state in addition to their selection. An engine adopts them, or refuses the policy if it
/// cannot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Setters)]
#[setters(strip_option)]
#[non_exhaustive]
pub struct Deployment {
    /// Names of the policy's keys for the number of query heads and their channels.
    pub head_keys: [&'static str; 2],
    /// Number of query heads of the model.
    pub num_heads: Option<u32>,
    /// Number of channels of a query head.
    pub head_dim: Option<u32>,
    /// Settings of the engine that loads KV blocks ahead of need.
    pub prefetch: Option<PrefetchSettings>,
    /// Number of blocks that are fetched to the device ahead of a selection: the best blocks that the last selection
    /// left out. If the policy does not state the number, an engine chooses it.
    pub ahead_blocks: Option<u32>,
}

/// Settings of an engine that loads KV blocks ahead of need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PrefetchSettings {
    /// Number of threads.
    pub workers: u32,
    /// Maximum number of loads that have not ended.
    pub max_pending: u32,
    /// Number of steps ahead of the current one whose blocks may be loaded.
    pub ahead: u32,
    /// Maximum number of loaded blocks kept for their consumers.
    pub cache_blocks: u32,
}

impl PrefetchSettings {
    /// `workers` threads with up to `max_pending` loads, for steps up to `ahead` from the current one; `cache_blocks` loaded
    /// blocks wait for their consumers.
    #[must_use]
    pub const fn new(workers: u32, max_pending: u32, ahead: u32, cache_blocks: u32) -> Self {
        Self { workers, max_pending, ahead, cache_blocks }
    }
}

impl Default for Deployment {
    fn default() -> Self {
        let head_keys = ["num_heads", "head_dim"];
        Self { head_keys, num_heads: None, head_dim: None, prefetch: None, ahead_blocks: None }
    }
}

impl Deployment {
    /// Checks the heads of a model: `num_heads` query heads of `head_dim` channels.
    ///
    /// # Errors
    /// [`SelectError::Deployment`] for the policy called `policy`, if it was set up for other heads.
    pub fn check(&self, policy: &'static str, num_heads: u32, head_dim: u32) -> Result<(), SelectError> {
        let [heads, dim] = self.head_keys;
        let settings = [(heads, self.num_heads, num_heads), (dim, self.head_dim, head_dim)];
        for (key, stated, actual) in settings {
            if let Some(stated) = stated.filter(|stated| *stated != actual) {
                return Err(SelectError::Deployment { policy, key, stated, actual });
            }
        }
        Ok(())
    }
}
