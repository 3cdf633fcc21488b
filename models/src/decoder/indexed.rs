//! Record of what a model's indexers select, in the form of sparse policies. A block is a token here (DeepSeek Sparse Attention),
//! or an entry of a compressed cache (DeepSeek V4).

use std::ops::Range;

use attn_kernels::gpu::{Gpu, Pass, PassResults, Read};
use sparse_select::Selection;

use super::attention::Attention;
use super::batch::Batch;
use super::choices::{ChoiceBuffer, Choices};
use crate::batch::LayerChoice;
use crate::cast::u32_of;
use crate::sparse::{Attended, Tally};
use crate::{DecoderConfig, ModelError};

/// Maximum number of indices of all layers that a step returns: copying those of a long prefill would take longer than the step.
const MAX_TRACED: usize = 8 << 20;

/// Layers whose queries attend to what an indexer selects.
#[derive(Debug)]
pub(super) struct Indexed {
    /// Maximum number of blocks that a query attends.
    top_k: u32,
    /// Number of tokens per block.
    block: u32,
    layers: Vec<usize>,
    /// Whether selections are returned.
    pub(super) trace: bool,
    choices: Option<Choices>,
}

impl Indexed {
    pub(super) fn of(config: &DecoderConfig) -> Option<Self> {
        let top_k = config.indexer?.top_k;
        let of_layer = |layer: &usize| match &config.compressed {
            None => true,
            Some(compressed) => compressed.compressors[*layer].is_some_and(|of| of.indexed),
        };
        let layers = (0..config.num_layers as usize).filter(of_layer).collect();
        let block = config.indexed_block()?;
        Some(Self { top_k, block, layers, trace: false, choices: None })
    }

    /// Allocates a buffer for the choices of a step, if they are traced and the indexer has a choice.
    pub(super) fn begin(
        &mut self,
        gpu: &Gpu,
        attention: &Attention,
        batch: &Batch,
    ) -> Result<(), ModelError> {
        self.choices = None;
        if !self.trace {
            return Ok(());
        }
        let selected: Vec<(usize, ChoiceBuffer<'_>)> = self
            .layers
            .iter()
            .filter_map(|&layer| attention.choice(layer, batch).map(|selected| (layer, selected)))
            .collect();
        let words = selected.iter().map(|(_, selected)| selected.stride).sum::<usize>() * batch.rows as usize;
        if (1..=MAX_TRACED).contains(&words) {
            let mut choices = Choices::new(gpu)?;
            choices.begin(gpu, batch.rows, selected.into_iter())?;
            self.choices = Some(choices);
        }
        Ok(())
    }

    /// Records a copy of a layer's choices, before the next layer overwrites them.
    pub(super) fn copy(&self, pass: &mut Pass, layer: usize, attention: &Attention, batch: &Batch) {
        if let Some(choices) = &self.choices {
            choices.copy(pass, layer, batch.rows, attention.choice(layer, batch).into_iter());
        }
    }

    /// Records the readback of a step.
    pub(super) fn read(&self, pass: &mut Pass, batch: &Batch) -> Option<Read<u32>> {
        self.choices.as_ref()?.read(pass, batch.rows)
    }

    /// Takes the choices of a step.
    pub(super) fn take(
        &self,
        attention: &Attention,
        batch: &Batch,
        read: Option<Read<u32>>,
        done: &PassResults,
    ) -> Vec<LayerChoice> {
        let taken = self.choices.as_ref().zip(read);
        let entries_at = |row: usize, slots: &[u32]| attention.entries_at(batch, row, slots);
        taken.map_or_else(Vec::new, |(choices, read)| choices.take(batch.rows, &done.get(read), entries_at))
    }

    /// Counts the blocks that each slice attended, and adds the selections that were read back. O(rows).
    pub(super) fn attended(&self, batch: &Batch, choices: &[LayerChoice]) -> Vec<Option<Attended>> {
        let mut row = 0;
        let of_slice = |positions: &Range<u32>| {
            let seen: Vec<u32> = positions.clone().map(|at| self.seen(at)).collect();
            let rows = row..row + seen.len();
            row = rows.end;
            let tally = Tally {
                blocks: seen.iter().map(|seen| u64::from(self.top_k.min(*seen))).sum(),
                visible: seen.iter().map(|seen| u64::from(*seen)).sum(),
            };
            let mut attended = Attended::default();
            self.layers.iter().for_each(|layer| attended.count(*layer, tally));
            let selection =
                |choice: &LayerChoice| (u32_of(choice.layer), selection(&seen, &choice.rows[rows.clone()]));
            attended.selections = choices.iter().map(selection).collect();
            Some(attended)
        };
        batch.positions.iter().map(of_slice).collect()
    }

    /// Number of blocks that the query at `position` may see.
    fn seen(&self, position: u32) -> u32 {
        (position + 1) / self.block
    }
}

/// Returns the selection of a layer: for each query, one set of blocks for all heads. Query `i` sees the first
/// `seen[i]` blocks.
fn selection(seen: &[u32], rows: &[Vec<u32>]) -> Selection {
    let mut selection = Selection::new();
    let max = seen.iter().copied().max().unwrap_or(0);
    selection.begin_causal(max, 1, seen.iter().copied());
    rows.iter().for_each(|row| selection.push_row(row.iter().copied()));
    selection
}
