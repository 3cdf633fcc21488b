//! Choices of the routers and indexers of a step, layer by layer, to study how rounding changes them.

use attn_kernels::gpu::{Buf, Gpu, Pass, Read};

use super::buffers::GrowBuf;
use crate::ModelError;
use crate::batch::LayerChoice;

/// The choice of a router or an indexer in the current layer.
pub(super) struct ChoiceBuffer<'a> {
    pub(super) kind: ChoiceKind,
    pub(super) buffer: &'a Buf<u32>,
    /// Number of entries from one row to the next.
    pub(super) stride: usize,
}

/// Kinds of choices, each with a layout.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ChoiceKind {
    /// Experts, `[top_k]`.
    Experts,
    /// A list of tokens: their number, then the tokens, ascending.
    Tokens,
    /// Slots of entries of a compressed cache.
    Entries,
}

/// Choices of the step in progress.
#[derive(Debug)]
pub(super) struct Choices {
    buffer: GrowBuf<u32>,
    parts: Vec<ChoiceSpan>,
}

/// The choice of one router or indexer for all rows.
#[derive(Clone, Copy, Debug)]
struct ChoiceSpan {
    layer: usize,
    of: ChoiceKind,
    /// First entry in the buffer.
    first: usize,
    /// Number of entries from one row to the next.
    stride: usize,
}

impl Choices {
    pub(super) fn new(gpu: &Gpu) -> Result<Self, ModelError> {
        Ok(Self { buffer: GrowBuf::new(gpu, "choices", 1)?, parts: Vec::new() })
    }

    /// Plans the choices of a step of `rows` rows, by layer.
    pub(super) fn begin<'a>(
        &mut self,
        gpu: &Gpu,
        rows: u32,
        selected: impl Iterator<Item = (usize, ChoiceBuffer<'a>)>,
    ) -> Result<(), ModelError> {
        let mut end = 0;
        self.parts.clear();
        for (layer, ChoiceBuffer { kind: of, stride, .. }) in selected {
            self.parts.push(ChoiceSpan { layer, of, first: end, stride });
            end += rows as usize * stride;
        }
        self.buffer.fit(gpu, end)
    }

    /// Records a copy of a layer's choices, before the next layer overwrites them.
    pub(super) fn copy<'a>(
        &self,
        pass: &mut Pass,
        layer: usize,
        rows: u32,
        selected: impl Iterator<Item = ChoiceBuffer<'a>>,
    ) {
        for (part, from) in self.parts.iter().filter(|part| part.layer == layer).zip(selected) {
            pass.copy(from.buffer, 0..rows as usize * part.stride, &self.buffer, part.first);
        }
    }

    /// Records the readback of a step.
    pub(super) fn read(&self, pass: &mut Pass, rows: u32) -> Option<Read<u32>> {
        let last = self.parts.last()?;
        Some(pass.read(&self.buffer, 0..last.first + rows as usize * last.stride))
    }

    /// Turns the readback of a step of `rows` rows into choices. `entries_at` converts the slots of a row into entries.
    pub(super) fn take(
        &self,
        rows: u32,
        words: &[u32],
        entries_at: impl Fn(usize, &[u32]) -> Vec<u32>,
    ) -> Vec<LayerChoice> {
        let of_part = |part: &ChoiceSpan| {
            let selected = |(index, row): (usize, &[u32])| match part.of {
                ChoiceKind::Experts => {
                    let mut experts = row.to_vec();
                    experts.sort_unstable();
                    experts
                }
                ChoiceKind::Tokens => row[1..=row[0] as usize].to_vec(),
                ChoiceKind::Entries => entries_at(index, row),
            };
            let of_rows = words[part.first..].chunks_exact(part.stride).take(rows as usize);
            LayerChoice { layer: part.layer, rows: of_rows.enumerate().map(selected).collect() }
        };
        self.parts.iter().map(of_part).collect()
    }
}
