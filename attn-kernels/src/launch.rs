//! Launches of several kernels as one, with the choice of kernels for a device and the scratch memory between them.
//!
//! The runtime, [`gpu`](crate::gpu), knows no kernel; here are the choices that need both.

mod attend;
mod chunked_prefix;
mod top_k;

pub use attend::{Attend, AttendError, AttendRow};
pub use chunked_prefix::{PrefixBuffers, PrefixPass};
pub use top_k::{TopK, TopKLimits};

use crate::Variant;
use crate::gpu::Gpu;
use crate::kernel::block_score_subgroup;

impl Gpu {
    /// Compiles a variant of `block_score`, or of `block_score_subgroup` if it serves the same shape and the device
    /// runs it.
    #[must_use]
    pub fn block_score(&self, variant: Variant) -> Variant {
        block_score_subgroup::of(&variant).filter(|other| self.profile().runs(other)).unwrap_or(variant)
    }
}
