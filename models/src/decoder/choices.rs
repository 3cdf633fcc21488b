//! What the routers and indexers of a step chose, layer by layer: for those who ask how rounding changes it.

use attn_kernels::gpu::{Buf, Gpu, Pass, Read};

use super::Decoder;
use super::inputs::Plan;
use super::layer::Layer;
use super::mlp::Mlp;
use crate::ModelError;
use crate::batch::Choice;

/// Where the choices of the step in progress are kept.
#[derive(Debug)]
pub(super) struct Choices {
    buffer: Buf<u32>,
    parts: Vec<Part>,
}

/// What one router or indexer chose for all rows.
#[derive(Clone, Copy, Debug)]
struct Part {
    layer: usize,
    of: Of,
    /// First entry in the buffer.
    first: usize,
    /// Entries from row to row.
    stride: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Of {
    /// `[top_k]` experts.
    Experts,
    /// A list `count, tokens ascending`.
    Tokens,
    /// Slots of entries of a compressed cache.
    Entries,
}

impl Choices {
    pub(super) fn new(gpu: &Gpu) -> Result<Self, ModelError> {
        Ok(Self { buffer: gpu.buffer("choices", 1)?, parts: Vec::new() })
    }

    pub(super) fn read(&self, pass: &mut Pass, plan: &Plan) -> Option<Read<u32>> {
        let last = self.parts.last()?;
        Some(pass.read(&self.buffer, 0..last.first + plan.rows as usize * last.stride))
    }
}

impl Decoder {
    /// Has every step from now on hand back what its routers and indexers chose.
    ///
    /// # Errors
    /// What the device reports.
    pub fn trace_choices(&mut self, on: bool) -> Result<(), ModelError> {
        self.choices = if on { Some(Choices::new(&self.gpu)?) } else { None };
        Ok(())
    }

    /// Lays out the choices of a step.
    pub(super) fn begin_choices(&mut self, plan: &Plan) -> Result<(), ModelError> {
        let Some(mut choices) = self.choices.take() else { return Ok(()) };
        let mut end = 0;
        choices.parts.clear();
        for (layer, weights) in self.layers.iter().enumerate() {
            for (of, stride) in self.strides(weights, plan) {
                choices.parts.push(Part { layer, of, first: end, stride });
                end += plan.rows as usize * stride;
            }
        }
        if choices.buffer.len() < end {
            choices.buffer = self.gpu.buffer("choices", end.next_power_of_two())?;
        }
        self.choices = Some(choices);
        Ok(())
    }

    /// The choices of a step out of what was read.
    pub(super) fn take_choices(&self, plan: &Plan, words: &[u32]) -> Vec<Choice> {
        let of_part = |part: &Part| {
            let chosen = |(index, row): (usize, &[u32])| match part.of {
                Of::Experts => {
                    let mut experts = row.to_vec();
                    experts.sort_unstable();
                    experts
                }
                Of::Tokens => row[1..=row[0] as usize].to_vec(),
                Of::Entries => self.entries_at(plan, index, row),
            };
            let rows = words[part.first..].chunks_exact(part.stride).take(plan.rows as usize);
            Choice { layer: part.layer, rows: rows.enumerate().map(chosen).collect() }
        };
        self.choices.iter().flat_map(|choices| &choices.parts).map(of_part).collect()
    }

    /// What a layer chooses, with the entries a row.
    fn strides(&self, layer: &Layer, plan: &Plan) -> Vec<(Of, usize)> {
        let mut strides = Vec::new();
        if let Some(indexer) = self.latent.as_ref().and_then(|latent| latent.indexer.as_ref())
            && let Some(stride) = indexer.chosen_stride(plan)
        {
            strides.push((Of::Tokens, stride));
        }
        let entries = layer.compressed.as_ref().and_then(|compressed| compressed.entries.as_ref());
        if entries.is_some_and(|entries| entries.indexer.is_some())
            && let Some((_, stride)) = self.chosen_slots(plan)
        {
            strides.push((Of::Entries, stride));
        }
        if let (Mlp::Experts(_), Some(moe)) = (&layer.mlp, &self.config.moe) {
            strides.push((Of::Experts, moe.top_k as usize));
        }
        strides
    }

    /// Records copies of what the layer chose, before the next one overwrites it.
    pub(super) fn copy_choices(&self, pass: &mut Pass, layer: usize, plan: &Plan) {
        let Some(choices) = &self.choices else { return };
        for part in choices.parts.iter().filter(|part| part.layer == layer) {
            let from = match part.of {
                Of::Experts => self.moe().chosen(),
                Of::Tokens => self.latent().indexer.as_ref().expect("a layer that chooses tokens").chosen(),
                Of::Entries => self.chosen_slots(plan).expect("a step that chooses entries").0,
            };
            pass.copy(from, 0..plan.rows as usize * part.stride, &choices.buffer, part.first);
        }
    }
}
