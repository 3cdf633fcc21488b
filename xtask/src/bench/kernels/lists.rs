//! Lists of selected blocks: random ones of a given share, and those that selection leaves.

use anyhow::Result;
use attn_kernels::gpu::{Buf, Gpu};
use attn_kernels::self_test::options;

/// Number of tokens of a block that lists select.
pub(super) const SELECT_BLOCK: u32 = 64;

/// Lists `[count, blocks ascending..]`, one for each group (row or query block) and KV head.
pub(super) struct Lists {
    pub(super) buffer: Buf<u32>,
    /// Number of entries from one list to the next.
    pub(super) stride: u32,
    /// Number of tokens of a block.
    pub(super) block: u32,
    /// Mean number of tokens that the lists of a KV head hold.
    pub(super) tokens: f64,
    /// Share of the visible blocks that the lists name.
    pub(super) density: f64,
}

impl Lists {
    /// Selects a share of the blocks of each length in `lens`, at least the last block. `lens` has one length for every
    /// KV head of the first group, then of the second group, and so on.
    pub(super) fn random(
        gpu: &Gpu,
        lens: impl Iterator<Item = u32> + Clone,
        kv_heads: u32,
        density: f64,
    ) -> Result<Self> {
        let given = options::Lists::share(lens.clone(), SELECT_BLOCK, density);
        let (buffer, stride) = (gpu.upload("lists", &given.lists)?, given.stride);
        let tokens = given.tokens(lens) / f64::from(kv_heads);
        Ok(Self { buffer, stride, block: SELECT_BLOCK, tokens, density })
    }

    /// Describes the selection.
    pub(super) fn kind(&self) -> String {
        kind(self.density)
    }
}

/// Describes a selection of a share of the blocks.
pub(super) fn kind(density: f64) -> String {
    format!(", {:.0} % of the blocks", density * 100.0)
}
