//! Layer and step for which blocks are scored.

use attn_kernels::gpu::Buf;
use attn_kernels::rows::{DecodeRow, PhysicalBlock};

use crate::KvPool;

/// Inputs of the kernels that score blocks in a layer.
pub(in crate::decoder::sparse) struct RankContext<'a> {
    pub(in crate::decoder::sparse) layer: usize,
    pub(in crate::decoder::sparse) attn_group: usize,
    pub(in crate::decoder::sparse) kv: &'a KvPool,
    pub(in crate::decoder::sparse) q: &'a Buf<f32>,
    pub(in crate::decoder::sparse) tables: &'a Buf<PhysicalBlock>,
    /// Decode rows that select. The next field is their number.
    pub(in crate::decoder::sparse) rows: &'a Buf<DecodeRow>,
    pub(in crate::decoder::sparse) count: u32,
}
