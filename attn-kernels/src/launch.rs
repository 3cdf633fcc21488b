//! Launches of several kernels as one: what a device makes of a task, and the scratch between the kernels.
//!
//! The runtime, [`gpu`](crate::gpu), knows no kernel; here are the choices that need both.

mod attend;
mod chunked_prefix;
mod top_k;

pub use attend::{Attend, AttendError, AttendRow};
pub use chunked_prefix::{PrefixBuffers, PrefixPass};
pub use top_k::{TopK, TopKLimits};

use crate::gpu::Gpu;
use crate::kernel::paged_decode::Lanes;
use crate::kernel::top_k::LANES;
use crate::kernel::{KvShape, block_score_subgroup};
use crate::{Level, Variant};

impl Gpu {
    /// Chooses the fastest form of `paged_decode` on this device, for `num_heads` query heads over a cache of this
    /// shape, in steps that attend to `keys` keys in all; [`Lanes::Matrices`] only with `coop`, where f16 is precise
    /// enough.
    #[must_use]
    pub fn decode_lanes(&self, shape: &KvShape, num_heads: u32, keys: u64, coop: bool) -> Lanes {
        let level = if coop && self.runs_coop() { Level::Coop } else { self.level().min(Level::Subgroup) };
        let info = self.info();
        Lanes::of(shape, num_heads, keys, level, (info.subgroup_min_size, info.subgroup_max_size))
    }

    /// A variant of `block_score`, or `block_score_subgroup` in its stead where it serves the same and the device bears it.
    #[must_use]
    pub fn block_score(&self, variant: Variant) -> Variant {
        let smallest = self.info().subgroup_min_size;
        let bears = |other: &Variant| self.level() >= other.level && other.subgroups.contains(&smallest);
        block_score_subgroup::of(&variant).filter(bears).unwrap_or(variant)
    }

    /// The level at which `top_k` and `top_k_long` run here: that of the device where workgroups may have [`LANES`].
    #[must_use]
    pub fn top_k_level(&self) -> Level {
        let max = self.limits().max_compute_invocations_per_workgroup;
        if max < LANES { Level::Baseline } else { self.level() }
    }
}
