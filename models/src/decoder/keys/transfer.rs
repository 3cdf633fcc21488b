//! Parts of a decoder that transfers of blocks are recorded with.

use attn_kernels::gpu::{Gpu, Pass};

use super::offload_plan::OffloadPlan;
use crate::KvPool;
use crate::decoder::batch::Batch;

/// Parts of a decoder that are needed to record transfers.
pub(in crate::decoder) struct TransferContext<'a> {
    pub(in crate::decoder) gpu: &'a Gpu,
    pub(in crate::decoder) pass: &'a mut Pass,
    pub(in crate::decoder) kv: &'a KvPool,
    pub(in crate::decoder) batch: &'a Batch,
    pub(in crate::decoder) offload_plan: &'a OffloadPlan,
}
