//! The step after this one, encoded while this one runs.
//!
//! Decode steps of as many sequences differ in lists and tables, which are buffers, and hardly ever in commands. So the host
//! encodes the same commands again while the device works on them, and the next step is on its way as soon as its lists are
//! written.

use attn_kernels::gpu::Encoded;

use super::inputs::Plan;
use super::partitions::Cut;
use super::{Decoder, Reads, draws};
use crate::ModelError;

/// A step that has been encoded.
#[derive(Debug)]
pub(super) struct Ahead {
    shape: Shape,
    pub(super) step: Encoded,
    pub(super) reads: Reads,
    /// Of the commands, where debug builds compare them.
    digest: u64,
}

/// What the commands of a decode step follow from, beside what stays as long as the decoder.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Shape {
    rows: u32,
    /// Layers of a submission: long steps are cut by it.
    layers_a_submission: u64,
    scored: usize,
    draws: draws::Shape,
    /// By view.
    cuts: Vec<Cut>,
    /// Lengths of the buffers that grow: a longer one is another.
    buffers: [usize; 2],
}

impl Decoder {
    /// The shape of a step that others may repeat: one of decode rows that attend everything through the device's cache.
    pub(super) fn shape(&self, plan: &Plan) -> Option<Shape> {
        let plain = self.sparse.is_none()
            && self.latent.is_none()
            && self.compressed.is_none()
            && self.choices.is_none()
            && plan.stream.is_none();
        let decodes = plan.decode_until == plan.rows && plan.wanted.is_empty();
        if !(plain && decodes) {
            return None;
        }
        Some(Shape {
            rows: plan.rows,
            layers_a_submission: self.layers_a_submission(plan).min(self.layers.len() as u64),
            scored: plan.scored.len(),
            draws: self.draws.shape(&plan.draws)?,
            cuts: plan.views.iter().map(|view| view.all.cut).collect(),
            buffers: [self.inputs.tables.len(), self.activations.stats.len()],
        })
    }

    /// Encodes another step like `plan`.
    pub(super) fn encode_ahead(&mut self, plan: &Plan, shape: Shape) -> Result<(), ModelError> {
        let (pass, reads) = self.record(plan, false)?;
        let digest = if cfg!(debug_assertions) { pass.digest() } else { 0 };
        self.ahead = Some(Ahead { shape, step: self.gpu.encode(pass)?, reads, digest });
        Ok(())
    }

    /// What was encoded, if it does what `plan` wants.
    pub(super) fn take_ahead(
        &mut self,
        plan: &Plan,
        shape: Option<&Shape>,
    ) -> Result<Option<Ahead>, ModelError> {
        let Some(ahead) = self.ahead.take() else { return Ok(None) };
        if Some(&ahead.shape) != shape || !self.gpu.times_as(&ahead.step) {
            self.gpu.discard(ahead.step);
            return Ok(None);
        }
        if cfg!(debug_assertions) {
            let digest = self.record(plan, false)?.0.digest();
            assert_eq!(digest, ahead.digest, "steps of {:?} differ in their commands", ahead.shape);
        }
        self.steps_ahead += 1;
        Ok(Some(ahead))
    }

    /// Steps so far that were encoded while the one before them ran.
    #[must_use]
    pub fn steps_ahead(&self) -> u64 {
        self.steps_ahead
    }
}
