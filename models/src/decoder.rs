//! The forward pass: one config-driven decoder over paged KV.
//!
//! A [`Decoder`] is made of parts that own their weights, kernels and buffers: attention, what follows it, the residual, the
//! source of keys, draws. Each records into a context, which holds the pass and what all parts share. A step is planned on the
//! host, written to the device, recorded, sent, and taken back.

mod accessors;
mod activations;
mod attention;
mod attention_groups;
mod batch;
mod blocks;
mod buffers;
mod choices;
mod draws;
mod head;
mod hyper;
mod indexed;
mod kernels;
mod keys;
mod limits;
mod load;
mod mlp;
mod moe;
mod ops;
mod options;
mod portions;
mod prepare;
mod progress;
mod rehearsal;
mod ring_schedule;
mod roofline;
mod rope_cos_sin;
mod selecting;
mod sparse;
mod splits;

pub use blocks::BlockRead;
pub use options::{ActivationType, DecoderOptions};
pub use progress::{LoadProgress, Loaded};
pub use rehearsal::{ChunkRehearsal, DecodeRehearsal};
pub use roofline::WeightSizes;

use std::ops::Range;
use std::sync::Arc;

use attn_kernels::gpu::{Encoded, Gpu, Pass, Pipeline, Read, Submission};
use attn_kernels::split::SplitPlan;
use kvblock::BlockId;

use crate::batch::{Sample, Slice, StepOutput};
use crate::{DecoderConfig, KvPool, ModelError};
use activations::Activations;
use attention::Attention;
use attention_groups::AttentionGroups;
use batch::Batch;
use choices::{ChoiceBuffer, Choices};
use draws::DrawState;
use head::{LogitRows, StepEnd, StepReads};
use hyper::{Half, Residual};
use indexed::Indexed;
use keys::{Fetches, KeySource, OffloadPlan, Residency};
use load::Weights;
use mlp::Mlps;
use ops::{Ctx, Ops};
use sparse::SelectionStep;
use splits::Splits;

/// A model on a device.
#[derive(Debug)]
pub struct Decoder {
    gpu: Arc<Gpu>,
    config: DecoderConfig,
    options: DecoderOptions,
    weights: Weights,
    ops: Ops,
    copy: Arc<Pipeline>,
    kv: KvPool,
    attn_groups: AttentionGroups,
    batch: Batch,
    splits: Splits,
    activations: Activations,
    attention: Attention,
    keys: KeySource,
    offload_plan: OffloadPlan,
    residual: Residual,
    mlps: Mlps,
    logit_rows: LogitRows,
    draws: DrawState,
    /// Layers that a step runs: all of them, except in a rehearsal.
    layers: Range<usize>,
    /// Choices of routers and indexers, if they are traced.
    choices: Option<Choices>,
    /// Record of what indexers select, if the model has any.
    indexed: Option<Indexed>,
    /// The next step, encoded while the last one ran.
    ahead: Option<EncodedStep>,
    steps_ahead: u64,
    steps_following: u64,
    /// Number of bytes of weights that steps have copied from the host.
    streamed_bytes: u64,
}

impl Drop for Decoder {
    fn drop(&mut self) {
        // Weights and caches stay on the device as long as a bind group names them, and the device may live on.
        self.gpu.forget_bind_groups();
    }
}

/// A step that was encoded before its lists were known.
///
/// Decode steps of as many sequences differ in lists and tables, which are buffers, and hardly ever in commands. So the host
/// encodes the same commands again while the device works on them, and the next step is on its way as soon as its lists are
/// written.
#[derive(Debug)]
struct EncodedStep {
    shape: StepShape,
    step: Encoded,
    reads: StepReads,
    fetches: Fetches,
    /// Whether each layer's prefetch is still pending after the step.
    pending_prefetches: Vec<bool>,
    /// Digest of the commands, which debug builds compare.
    digest: u64,
}

/// A step that the device works on.
#[derive(Debug)]
pub(crate) struct SentStep {
    submission: Submission,
    reads: StepReads,
}

/// Values that the commands of a decode step depend on, apart from those that never change during a decoder's life.
#[derive(PartialEq, Eq, Debug)]
struct StepShape {
    rows: u32,
    /// Whether the tokens of the step are those that the step before draws.
    follows: bool,
    /// Number of layers per submission: long steps are split into several submissions.
    layers_per_submission: u64,
    scored: usize,
    draws: draws::DrawShape,
    /// Splits of the rows of each attention group, and of the lists of layers that select.
    splits: Vec<SplitPlan>,
    /// Numbers of rows that attend everything and of rows that attend lists, for each attention group.
    split: Vec<[usize; 2]>,
    /// Numbers that the commands depend on, from the selection of blocks.
    selection: Vec<usize>,
    /// Numbers that the commands depend on, from the keys off the device.
    keys: Vec<usize>,
    /// Lengths of the buffers that grow: commands bind a buffer, and a longer one replaces it.
    buffers: [usize; 2],
}

/// Number of multiply-adds after which a submission ends: a few milliseconds on a large GPU, well under a second on a
/// small one.
const SUBMISSION_MULTIPLY_ADDS: u64 = 50_000_000_000;

/// Maximum number of layers of a submission: the device works while the host records and encodes the rest.
const MAX_SUBMISSION_LAYERS: usize = 8;

impl Decoder {
    /// Maximum number of rows, at least one, of a step of a model on `gpu`: each buffer has to fit in a binding.
    #[must_use]
    pub fn max_rows(gpu: &Gpu, config: &DecoderConfig) -> u32 {
        limits::max_rows(config, gpu.max_binding_bytes())
    }

    /// Runs one step and waits for what it draws. Masks [that are filled late](crate::sampling::Allowed::Late) allow nothing.
    ///
    /// # Errors
    /// Token ids outside the vocabulary, blocks outside the pool, masks that leave no token, and what the device reports.
    ///
    /// # Panics
    /// When there are more rows or samples than the decoder was built for, or a table is too short.
    pub fn step(&mut self, slices: &[Slice<'_>], samples: &[Sample<'_>]) -> Result<StepOutput, ModelError> {
        self.step_filling(slices, samples, &mut |_, _| {})
    }

    /// Runs a step as [`step`](Self::step) does. While the device computes the logits, calls `fill` with the index of
    /// each sample whose mask is [filled late](crate::sampling::Allowed::Late), and with the words of that mask, all 0.
    ///
    /// # Errors
    /// Those of `step`.
    ///
    /// # Panics
    /// As `step`.
    pub fn step_filling(
        &mut self,
        slices: &[Slice<'_>],
        samples: &[Sample<'_>],
        fill: &mut dyn FnMut(usize, &mut [u32]),
    ) -> Result<StepOutput, ModelError> {
        self.plan_step(slices, samples)?;
        let sent = self.send_step(samples, fill)?;
        self.take_step(sent)
    }

    /// Plans a step and writes it to the device.
    pub(crate) fn plan_step(
        &mut self,
        slices: &[Slice<'_>],
        samples: &[Sample<'_>],
    ) -> Result<(), ModelError> {
        self.plan(slices, samples)?;
        self.upload()?;
        self.begin_selection(slices)
    }

    /// Plans the decode step that follows the one planned last, and writes it to the device. Its tokens are those
    /// that the other step draws, row by row; the tokens of `slices` are ignored.
    pub(crate) fn plan_following(
        &mut self,
        slices: &[Slice<'_>],
        samples: &[Sample<'_>],
    ) -> Result<(), ModelError> {
        let (rows, follows) = (self.batch.rows, self.can_be_followed());
        assert!(follows && rows as usize == slices.len(), "{} slices follow {rows} rows", slices.len());
        self.plan(slices, samples)?;
        self.batch.follows = true;
        self.upload()?;
        self.steps_following += 1;
        Ok(())
    }

    /// Whether the lists of the step that was planned last may be replaced before its results are taken. The step must
    /// draw a token for each row and return nothing else. It must have no selection, no record of choices, and no weights
    /// or keys on the host, as these need the lists later.
    pub(crate) fn can_be_followed(&self) -> bool {
        let Self { batch, attention, logit_rows, draws, keys, .. } = self;
        let plain = !draws.has_log_probs() && !draws.fills_late() && logit_rows.are_all_sampled(batch.rows);
        plain
            && self.weights.head.is_some()
            && attention.sparse().is_none()
            && self.indexed.is_none()
            && self.weight_placement().is_none()
            && matches!(keys, KeySource::Device)
            && self.shape().is_some()
    }

    /// Sends the step that was planned last.
    pub(crate) fn send_step(
        &mut self,
        samples: &[Sample<'_>],
        fill: &mut dyn FnMut(usize, &mut [u32]),
    ) -> Result<SentStep, ModelError> {
        let shape = self.shape();
        let (mut step, reads, fetches) = match self.take_ahead(shape.as_ref())? {
            Some(ahead) => (ahead.step, ahead.reads, ahead.fetches),
            None => {
                self.begin()?;
                let (pass, reads) = self.record(true)?;
                (self.gpu.encode(pass)?, reads, self.keys.take_fetches())
            }
        };
        if self.draws.fills_late() {
            self.gpu.send_first(&mut step)?;
            self.draws.fill(samples, fill)?;
        }
        let submission = self.gpu.send(step)?.defer();
        self.keys.sent(&self.kv, &self.offload_plan, &fetches);
        if shape.is_some() {
            self.encode_ahead()?;
        }
        Ok(SentStep { submission, reads })
    }

    /// Waits for a step, and returns its results.
    pub(crate) fn take_step(&mut self, sent: SentStep) -> Result<StepOutput, ModelError> {
        let SentStep { submission, mut reads } = sent;
        let done = self.gpu.collect(submission)?;
        self.streamed_bytes += self.weight_placement().map_or(0, |placement| placement.host_bytes);
        self.attention.end(&self.gpu);
        self.offload_plan.dirty().keep(&self.gpu, &self.kv, reads.dirty(), &done)?;
        let disk = self.keys.end(&self.gpu)?;
        let indexed = self.indexed.as_ref().map(|indexed| {
            let choices = indexed.take(&self.attention, &self.batch, reads.indexed(), &done);
            indexed.attended(&self.batch, &choices)
        });
        let Self { batch, logit_rows, draws, attention, choices, .. } = self;
        let mut output = reads.take(batch, logit_rows, draws, done, attention, choices.as_ref());
        output.timings.splice(0..0, disk.timings);
        self.lose(disk.lost.keys().copied());
        output.lost = disk.lost.into_iter().map(|(block, error)| (BlockId::new(block), error)).collect();
        if let Some(attended) = indexed {
            output.attended = attended;
        }
        Ok(output)
    }

    /// Ends a step that [only hands over](Self::only_hands_over), or whose slices and samples request nothing,
    /// without a wait. Returns its work, the read of the residual of all rows unless the decoder has the head, and
    /// results that need no read.
    pub(crate) fn leave_step(&mut self, sent: SentStep) -> (Submission, Option<Read<f32>>, StepOutput) {
        let SentStep { submission, reads } = sent;
        self.attention.end(&self.gpu);
        let indexed = self.indexed.as_ref();
        let attended = indexed.map_or_else(Vec::new, |indexed| indexed.attended(&self.batch, &[]));
        (submission, reads.into_residual(), StepOutput { attended, ..StepOutput::default() })
    }

    /// Plans a step: its batch, then its logits, samples, keys, splits and attention.
    fn plan(&mut self, slices: &[Slice<'_>], samples: &[Sample<'_>]) -> Result<(), ModelError> {
        let Self { config, options, kv, batch, offload_plan, keys, splits, attention, .. } = self;
        let attn_groups = &self.attn_groups.all;
        let queries = attention.sparse_mut().and_then(|sparse| sparse.plan(slices));
        batch.plan(config, options, attn_groups, slices, queries.as_deref())?;
        kv.check_blocks(batch.tables.iter().map(|block| block.0))?;
        self.logit_rows.plan(options, slices, samples);
        self.draws.plan(slices, samples)?;
        let selects = attention.sparse().is_some_and(sparse::Sparse::selects_everywhere);
        keys.plan(kv, attn_groups, slices, batch, offload_plan, selects)?;
        splits.plan(attn_groups, batch, offload_plan);
        attention.plan(config, options, slices, batch);
        Ok(())
    }

    /// Uploads the lists of a step, and resizes the buffers that depend on them.
    fn upload(&mut self) -> Result<(), ModelError> {
        let Self { gpu, config, batch, splits, attention, .. } = self;
        attention.upload(gpu)?;
        batch.upload(gpu)?;
        self.offload_plan.upload(gpu)?;
        self.keys.upload(gpu, &self.kv, &self.offload_plan)?;
        self.logit_rows.upload(gpu, config.hidden_size)?;
        self.draws.upload()?;
        self.activations.fit_partials(gpu, config, batch, splits, attention.max_partitions())
    }

    /// Plans what the step selects, and uploads it.
    fn begin_selection(&mut self, slices: &[Slice<'_>]) -> Result<(), ModelError> {
        let Self { gpu, config, kv, batch, offload_plan, attention, keys, .. } = self;
        let Some(sparse) = attention.sparse_mut() else { return Ok(()) };
        let spare_pages = keys.pages().map_or(0, Residency::num_slots);
        sparse.begin(&SelectionStep { gpu, config, kv, batch, offload_plan, slices, spare_pages })
    }

    /// Prepares the parts that need work in every step that is not encoded ahead.
    fn begin(&mut self) -> Result<(), ModelError> {
        let Self { gpu, weights, batch, attention, mlps, choices, indexed, .. } = self;
        if let Some(indexed) = indexed {
            indexed.begin(gpu, attention, batch)?;
        }
        if let Some(choices) = choices {
            let of_layer = |layer: usize| {
                let selected = [attention.choice(layer, batch), mlps.choice(&weights.layers[layer].mlp)];
                selected.into_iter().flatten().map(move |selected: ChoiceBuffer<'_>| (layer, selected))
            };
            choices.begin(gpu, batch.rows, (0..weights.layers.len()).flat_map(of_layer))?;
        }
        Ok(())
    }

    /// Records a step. With `in_pieces`, also sends all submissions but the last one.
    fn record(&mut self, in_pieces: bool) -> Result<(Pass, StepReads), ModelError> {
        let max_layers = self.layers_per_submission();
        let Self { gpu, config, weights, ops, kv, batch, splits, attention, keys, draws, .. } = self;
        let (attn_groups, offload_plan) = (&self.attn_groups, &self.offload_plan);
        let tokens = if batch.follows { draws.sampled() } else { batch.tokens.on_device() };
        let (batch, act, residual, mlps) = (&*batch, &self.activations, &self.residual, &self.mlps);
        let (gpu, mut pass) = (&**gpu, Pass::new("step"));
        let [block_in, block_out] = residual.of_blocks(act);
        keys.begin();
        let mut ctx = Ctx {
            pass: &mut pass,
            gpu,
            config,
            ops,
            act,
            block_in,
            block_out,
            batch,
            tokens,
            attn_groups,
            splits,
            kv,
            keys,
            offload_plan,
        };
        ctx.begin_weights();
        ctx.embed(weights.embedding.as_ref());
        residual.begin(&mut ctx);
        attention.begin(&mut ctx)?;
        let (mut submission_layers, mut next_submission) = (0, 1);
        for (index, layer) in self.layers.clone().zip(&weights.layers[self.layers.clone()]) {
            ctx.enter_weights(index);
            residual.enter(&mut ctx, index, Half::Attention)?;
            attention.record(&mut ctx, index, layer.attn_norm.as_ref())?;
            residual.leave(&mut ctx);
            residual.enter(&mut ctx, index, Half::Mlp)?;
            // Prefetches of the next layer run concurrently with the MLP.
            mlps.record(&mut ctx, layer.mlp_norm.as_ref(), &layer.mlp, |ctx| {
                attention.look_ahead(ctx, index)
            })?;
            residual.leave(&mut ctx);
            if let Some(indexed) = &self.indexed {
                indexed.copy(ctx.pass, index, attention, batch);
            }
            if let Some(choices) = &self.choices {
                let selected = [attention.choice(index, batch), mlps.choice(&layer.mlp)];
                choices.copy(ctx.pass, index, batch.rows, selected.into_iter().flatten());
            }
            submission_layers += 1;
            if in_pieces && (submission_layers >= max_layers || index + 1 == next_submission) {
                gpu.flush(ctx.pass)?;
                submission_layers = 0;
            } else if submission_layers >= max_layers {
                ctx.pass.cut();
                submission_layers = 0;
            }
            if index + 1 == next_submission {
                // Twice as many layers each time: the device starts early, and never waits for a submission to be encoded.
                next_submission += next_submission.min(MAX_SUBMISSION_LAYERS);
            }
        }
        residual.end(&mut ctx)?;
        let (rows, draws) = (&self.logit_rows, &*draws);
        let (choices, indexed) = (self.choices.as_ref(), self.indexed.as_ref());
        let end = StepEnd { head: weights.head.as_ref(), rows, draws, attention, choices, indexed };
        let reads = end.record(&mut ctx)?;
        Ok((pass, reads))
    }

    /// Number of layers that fit into a submission, at least one, by their multiply-adds.
    fn layers_per_submission(&self) -> u64 {
        let c = &self.config;
        let (hidden, inner) = (u64::from(c.hidden_size), u64::from(c.intermediate_size));
        let heads = u64::from(c.num_heads) * u64::from(c.head_dim);
        let kv = u64::from(c.num_kv_heads) * u64::from(c.head_dim);
        let dense = hidden * (2 * heads + 2 * kv + 3 * inner);
        let layer = u64::from(self.batch.rows) * (dense + 2 * heads * u64::from(self.batch.longest));
        (SUBMISSION_MULTIPLY_ADDS / layer.max(1)).max(1)
    }

    /// Returns the shape of a step that can be repeated: decode rows alone, with all keys in the device's cache.
    fn shape(&self) -> Option<StepShape> {
        let Self { batch, splits, attention, logit_rows, .. } = self;
        let keys = self.keys.shape(&self.kv, &self.offload_plan)?;
        let decodes = batch.decode_until == batch.rows && !logit_rows.hands_back();
        let selection = attention.shape().filter(|_| self.choices.is_none() && decodes)?;
        Some(StepShape {
            rows: batch.rows,
            follows: batch.follows,
            layers_per_submission: self.layers_per_submission().min(self.weights.layers.len() as u64),
            scored: logit_rows.scored(),
            draws: self.draws.shape()?,
            splits: splits.all().chain(attention.list_splits(batch, splits)).collect(),
            split: batch
                .attn_groups
                .iter()
                .map(|v| [v.whole.decode.len(), v.selected.decode.len()])
                .collect(),
            selection,
            keys,
            buffers: [batch.tables.on_device().len(), self.activations.stats.len()],
        })
    }

    /// Encodes another step like the current one, but with the selection of blocks that the next step makes.
    fn encode_ahead(&mut self) -> Result<(), ModelError> {
        self.swap_next();
        let shape = self.shape().expect("steps are like the one at hand, which has a shape");
        let pending_prefetches = self.keys.pending_prefetches();
        let (pass, reads) = self.record(false)?;
        let digest = if cfg!(debug_assertions) { pass.digest() } else { 0 };
        let fetches = self.keys.take_fetches();
        let step = self.gpu.encode(pass)?;
        self.ahead = Some(EncodedStep {
            shape,
            step,
            reads,
            fetches,
            pending_prefetches: self.keys.pending_prefetches(),
            digest,
        });
        // The encoded step has not been submitted, so its fetches are still pending.
        self.keys.set_pending_prefetches(&pending_prefetches);
        self.swap_next();
        Ok(())
    }

    fn swap_next(&mut self) {
        self.attention.sparse_mut().into_iter().for_each(sparse::Sparse::swap_next);
    }

    /// Takes the step that was encoded ahead, if its shape is that of the current one.
    fn take_ahead(&mut self, shape: Option<&StepShape>) -> Result<Option<EncodedStep>, ModelError> {
        let Some(ahead) = self.ahead.take() else { return Ok(None) };
        if Some(&ahead.shape) != shape || !self.gpu.times_as(&ahead.step) {
            self.gpu.discard(ahead.step);
            return Ok(None);
        }
        if cfg!(debug_assertions) {
            let digest = self.record(false)?.0.digest();
            assert_eq!(digest, ahead.digest, "steps of {:?} differ in their commands", ahead.shape);
        }
        self.steps_ahead += 1;
        self.keys.set_pending_prefetches(&ahead.pending_prefetches);
        Ok(Some(ahead))
    }
}
