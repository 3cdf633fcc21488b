//! Chunks of prompts that are run only to measure their time.

use std::ops::Range;

use kvblock::Phase;

use super::super::Decoder;
use super::super::keys::KeySource;
use super::{SHORTEST, Stage};
use crate::{ChunkCrossing, ChunkGrid, ModelError, Reach, SelectionPlace, SparseOptions};

/// Number of layers that are run: layers are alike, and a whole model would take long.
const LAYERS: usize = 2;

/// A decoder whose chunks of prompts are run to measure their time, through few of its layers. Blocks of the pool are
/// overwritten, so that no sequence may hold any.
#[derive(Debug)]
pub struct ChunkRehearsal<'a> {
    stage: Stage<'a>,
    grid: ChunkGrid,
    /// Layers that are run; the first one selects.
    layers: Range<usize>,
}

impl Decoder {
    /// Returns the lengths below which chunks of prompts attend everything, if there is a policy.
    #[must_use]
    pub fn chunk_crossing(&self) -> Option<&ChunkCrossing> {
        self.options.sparse.as_ref().map(|sparse| &sparse.chunk_crossing)
    }

    /// Sets the lengths below which chunks of prompts attend everything.
    pub fn set_chunk_crossing(&mut self, crossing: ChunkCrossing) {
        if let Some(sparse) = &mut self.options.sparse {
            sparse.chunk_crossing = crossing;
        }
    }

    /// Returns chunks of prompts to be timed, of up to `rows` rows and with contexts of up to `longest` tokens. `None` if no
    /// chunk selects, or selections are read back in every layer, or contexts are not on the device.
    pub fn chunk_rehearsal(&mut self, rows: u32, longest: u32) -> Option<ChunkRehearsal<'_>> {
        let sparse = self.options.sparse.as_ref().filter(|sparse| sparse.acts_on(Phase::Prefill))?;
        let skips = sparse.policy.skips().is_some();
        let selects = skips || self.selects_on() == Some(SelectionPlace::Device);
        if !selects || !matches!(self.keys, KeySource::Device) {
            return None;
        }
        let acts =
            |layer: &usize| self.config.layers[*layer].reach == Reach::Full && !sparse.is_dense(*layer);
        let all = self.config.layers.len();
        let first = (0..all).find(acts)?;
        let longest = longest.min(self.config.context_length);
        let grid = ChunkGrid::new(
            rows.min(self.options.max_rows),
            sparse.prompts_from(),
            longest,
            self.pool_tokens(),
        );
        let stage = Stage { decoder: self, filled: 0 };
        Some(ChunkRehearsal { stage, grid, layers: first..all.min(first + LAYERS) })
    }
}

impl SparseOptions {
    /// Minimum number of tokens of a prompt that is timed: the policy drops nothing of shorter ones.
    fn prompts_from(&self) -> u32 {
        u32::try_from(self.of(Phase::Prefill).support().dense_below_tokens).unwrap_or(u32::MAX).max(SHORTEST)
    }

    /// Whether the share of a prompt's blocks that the policy keeps depends on the keys, so that steps count the blocks.
    fn keeps_by_content(&self) -> bool {
        self.policy.skips().is_none() && self.of(Phase::Prefill).support().query
    }
}

impl ChunkRehearsal<'_> {
    /// Returns the chunks that can be timed.
    #[must_use]
    pub fn grid(&self) -> ChunkGrid {
        self.grid.clone()
    }

    /// Runs a chunk of the last `rows` tokens of a prompt of `tokens` tokens, and waits for it. The chunk selects blocks
    /// if `selecting`, else it attends everything. The first run of a length also writes keys and values of the earlier
    /// tokens. Returns the share of blocks that were attended, if this share depends on the keys.
    ///
    /// # Errors
    /// Errors of the device.
    ///
    /// # Panics
    /// When the pool has no room for it, by [`grid`](Self::grid), or `rows` are more than `tokens` or than a step has.
    pub fn run(&mut self, rows: u32, tokens: u32, selecting: bool) -> Result<Option<f64>, ModelError> {
        let Self { stage, layers, .. } = self;
        let max = stage.decoder.kv.plan().block_sizes().map(|size| tokens.div_ceil(size)).max();
        stage.fill(max.unwrap_or(0))?;
        stage.decoder.set_chunk_crossing(match selecting {
            true => ChunkCrossing::default(),
            false => ChunkCrossing::never(),
        });
        let all = std::mem::replace(&mut stage.decoder.layers, layers.clone());
        let output = stage.step(1, tokens, tokens - rows..tokens, Phase::Prefill);
        stage.decoder.layers = all;
        let attended = output?.attended.into_iter().next().flatten();
        let sparse =
            stage.decoder.options.sparse.as_ref().filter(|sparse| selecting && sparse.keeps_by_content());
        Ok(sparse.and(attended).map(|attended| attended.layers[layers.start].density()))
    }
}
