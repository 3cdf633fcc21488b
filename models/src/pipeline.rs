//! A model whose layers are split over devices (pipeline parallelism).
//!
//! Each stage has some consecutive layers, with their weights and their part of the KV cache, and hands the residual to the next
//! stage through memory of the host. A block has the same id in all stages. A step of many rows is cut into parts: while one
//! stage works on a part, the stage before it works on the next part. A decode step is one part, and passes the stages in turn.

mod parts;

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use attn_kernels::gpu::{Compilation, Gpu, Read, Submission};
use kvblock::BlockId;

use self::parts::{Part, cut};
use crate::batch::{Sample, Slice, StepOutput};
use crate::cast::u32_of;
use crate::decoder::SentStep;
use crate::{
    BlockRead, ChunkCrossing, Crossing, Decoder, DecoderConfig, DecoderOptions, KvPlan, ModelError,
    WeightSizes, WeightSource,
};

/// Maximum number of rows of a step of several stages, divided by the number of stages and by the maximum number of
/// rows of a stage.
pub(crate) const STEPS: u32 = 4;

/// Number of parts of the largest steps, for each stage: with `n` parts, the last of `s` stages idles for `s - 1` of
/// `n + s - 1` time slots.
const PARTS: u32 = 8;

/// Minimum number of rows of a part, unless steps have fewer: products of fewer rows cost more for each row than idle
/// stages do.
const PART_ROWS: u32 = 1024;

/// A decoder whose layers are on one device, or split over several.
#[derive(Debug)]
pub struct Pipeline {
    config: DecoderConfig,
    plan: KvPlan,
    stages: Vec<Decoder>,
}

/// A step that was sent, and whose results have not been taken.
#[derive(Debug)]
pub struct Sent(SentTo);

#[derive(Debug)]
enum SentTo {
    /// The only stage is still computing the step.
    Stage(Box<SentStep>),
    /// All stages have computed the step.
    Stages(Box<StepOutput>),
}

/// Results of a part on which the device of a stage is still working: the residual, and the results of the layers of
/// this stage and of those before.
struct Handover {
    gpu: Arc<Gpu>,
    submission: Submission,
    residual: Read<f32>,
    output: StepOutput,
}

impl From<Decoder> for Pipeline {
    fn from(decoder: Decoder) -> Self {
        Self { config: decoder.config().clone(), plan: decoder.kv().plan().clone(), stages: vec![decoder] }
    }
}

impl Pipeline {
    /// Returns the number of layers of each of `stages` devices, so that each has about as many bytes of them. O(layers).
    ///
    /// # Errors
    /// [`ModelError::Stages`] if there are fewer layers than devices, and errors of tensors.
    pub fn even_layers(
        gpu: &Gpu,
        config: &DecoderConfig,
        weights: &dyn WeightSource,
        stages: usize,
    ) -> Result<Vec<u32>, ModelError> {
        let bytes = Decoder::layer_bytes(gpu, config, weights)?;
        if stages == 0 || bytes.len() < stages {
            let (layers, given) = (config.num_layers, vec![1; stages]);
            return Err(ModelError::Stages { layers, given });
        }
        Ok(parts::even(&bytes, stages))
    }

    /// Loads the model with `layers[i]` of its layers on `gpus[i]`. All stages have as many KV blocks, and `options` are those of
    /// each stage.
    ///
    /// # Errors
    /// [`ModelError::Stages`] unless each device has layers, and all are the model's; [`ModelError::StagesLack`] for a model
    /// whose caches have several groups of blocks, and for KV blocks or weights on the host; and those of [`Decoder::load`].
    pub fn load(
        gpus: &[Arc<Gpu>],
        layers: &[u32],
        config: &DecoderConfig,
        weights: &dyn WeightSource,
        options: &DecoderOptions,
    ) -> Result<Self, ModelError> {
        let sum: u64 = layers.iter().map(|layers| u64::from(*layers)).sum();
        if layers.len() != gpus.len() || layers.contains(&0) || sum != u64::from(config.num_layers) {
            let (layers, given) = (config.num_layers, layers.to_vec());
            return Err(ModelError::Stages { layers, given });
        }
        if let [gpu] = gpus {
            return Ok(Decoder::load(gpu, config, weights, options)?.into());
        }
        let plan = KvPlan::new(config, options.kv())?;
        let lacks = [
            (plan.layout.groups.len() > 1, "caches with one group of blocks"),
            (options.offload.is_some(), "all KV blocks on the devices"),
            (options.weights_on_gpu.is_some(), "all weights on the devices"),
        ];
        if let Some((_, lacks)) = lacks.into_iter().find(|(lacks, _)| *lacks) {
            return Err(ModelError::StagesLack { lacks });
        }
        let ends = layers.iter().scan(0, |end, layers| {
            *end += layers;
            Some(*end)
        });
        let stages: Vec<_> =
            gpus.iter().zip(ends.zip(layers).map(|(end, layers)| end - layers..end)).collect();
        let stages = Decoder::load_stages(&stages, config, weights, options)?;
        Ok(Self { config: config.clone(), plan, stages })
    }

    /// Returns the configuration of the model.
    #[must_use]
    pub fn config(&self) -> &DecoderConfig {
        &self.config
    }

    /// Returns the plan of the caches of all layers.
    #[must_use]
    pub fn plan(&self) -> &KvPlan {
        &self.plan
    }

    /// Returns the decoders of the stages, in the order of their layers: at least one.
    #[must_use]
    pub fn stages(&self) -> &[Decoder] {
        &self.stages
    }

    /// Returns the decoder of the first layers, or of all.
    #[must_use]
    pub fn first(&self) -> &Decoder {
        &self.stages[0]
    }

    /// Returns the decoder of the first layers, or of all.
    pub fn first_mut(&mut self) -> &mut Decoder {
        &mut self.stages[0]
    }

    /// Returns the device of the first layers, or of all.
    #[must_use]
    pub fn gpu(&self) -> &Arc<Gpu> {
        self.first().gpu()
    }

    /// Returns the devices of the stages.
    pub fn gpus(&self) -> impl Iterator<Item = &Arc<Gpu>> {
        self.stages.iter().map(Decoder::gpu)
    }

    /// Returns the state of the kernels of each device.
    #[must_use]
    pub fn compilations(&self) -> Vec<Compilation> {
        self.gpus().map(|gpu| gpu.compilation()).collect()
    }

    /// Returns the number of KV blocks that every stage has, including the null block and blocks on the host.
    #[must_use]
    pub fn num_blocks(&self) -> u32 {
        self.stages.iter().map(|stage| stage.kv().num_blocks()).min().unwrap_or(0)
    }

    /// Returns the number of KV blocks that have memory on the device of every stage.
    #[must_use]
    pub fn device_blocks(&self) -> u32 {
        self.stages.iter().map(|stage| stage.kv().device_blocks()).min().unwrap_or(0)
    }

    /// Whether the device of a stage was lost.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.gpus().any(|gpu| gpu.is_lost())
    }

    /// Returns the sizes of the tensors of all stages. A tied embedding that the first and the last stage have counts twice.
    #[must_use]
    pub fn weight_sizes(&self) -> WeightSizes {
        self.stages.iter().map(Decoder::weight_sizes).copied().sum()
    }

    /// Returns the maximum number of rows of a step of `stages` stages that each take up to `rows`: several parts.
    #[must_use]
    pub fn step_rows(rows: u32, stages: usize) -> u32 {
        match u32_of(stages) {
            0 | 1 => rows,
            stages => rows.saturating_mul(STEPS * stages),
        }
    }

    /// Bytes that a decode step must read: see [`Decoder::decode_bytes`].
    #[must_use]
    pub fn decode_bytes(&self, rows: u32, context: u32) -> f64 {
        self.stages.iter().map(|stage| stage.decode_bytes(rows, context)).sum()
    }

    /// Operations of a prefill: see [`Decoder::prefill_operations`].
    #[must_use]
    pub fn prefill_operations(&self, tokens: u32) -> f64 {
        self.stages.iter().map(|stage| stage.prefill_operations(tokens)).sum()
    }

    /// Runs a step: see [`Decoder::step`].
    ///
    /// # Errors
    /// Those of `Decoder::step`.
    ///
    /// # Panics
    /// As `Decoder::step`.
    pub fn step(&mut self, slices: &[Slice<'_>], samples: &[Sample<'_>]) -> Result<StepOutput, ModelError> {
        self.step_filling(slices, samples, &mut |_, _| {})
    }

    /// Runs a step: see [`Decoder::step_filling`]. If the layers are split, it may have [more rows](Self::step_rows) than a
    /// stage.
    ///
    /// # Errors
    /// Those of `Decoder::step_filling`.
    ///
    /// # Panics
    /// As `Decoder::step_filling`.
    pub fn step_filling(
        &mut self,
        slices: &[Slice<'_>],
        samples: &[Sample<'_>],
        fill: &mut dyn FnMut(usize, &mut [u32]),
    ) -> Result<StepOutput, ModelError> {
        let sent = self.send(slices, samples, fill)?;
        self.take(sent)
    }

    /// Sends a step, whose results are to be [taken](Self::take): see [`step_filling`](Self::step_filling). Steps of split
    /// layers are finished when this returns.
    ///
    /// # Errors
    /// Those of `step_filling`.
    ///
    /// # Panics
    /// As `step_filling`.
    pub fn send(
        &mut self,
        slices: &[Slice<'_>],
        samples: &[Sample<'_>],
        fill: &mut dyn FnMut(usize, &mut [u32]),
    ) -> Result<Sent, ModelError> {
        if let [only] = &mut self.stages[..] {
            only.plan_step(slices, samples)?;
            return Ok(Sent(SentTo::Stage(Box::new(only.send_step(samples, fill)?))));
        }
        Ok(Sent(SentTo::Stages(Box::new(self.through_stages(slices, samples, fill)?))))
    }

    /// Whether a decode step may [follow](Self::send_following) the step that was sent last. It may not if layers are
    /// split, a policy selects, an indexer or router is traced, keys or weights are on the host, a mask was filled late,
    /// or the step returns anything but one token for each row.
    #[must_use]
    pub fn can_be_followed(&self) -> bool {
        matches!(&self.stages[..], [only] if only.can_be_followed())
    }

    /// Sends the decode step that follows the step sent last, whose results need not have been taken. The token of
    /// each slice is the one that the step before draws for the slice of the same number; the tokens in `slices` are
    /// ignored. Results after [`NOT_FINITE`](crate::kernel::sample::NOT_FINITE) are meaningless.
    ///
    /// # Errors
    /// Those of [`step`](Self::step).
    ///
    /// # Panics
    /// As `step`, and unless the step sent last [can be followed](Self::can_be_followed) and has as many slices.
    pub fn send_following(
        &mut self,
        slices: &[Slice<'_>],
        samples: &[Sample<'_>],
    ) -> Result<Sent, ModelError> {
        let only = self.first_mut();
        only.plan_following(slices, samples)?;
        Ok(Sent(SentTo::Stage(Box::new(only.send_step(samples, &mut |_, _| {})?))))
    }

    /// Waits for a step that was sent, and returns its results. Results come in the order in which steps were sent. A
    /// step that is dropped runs nevertheless.
    ///
    /// # Errors
    /// Those of [`step`](Self::step).
    pub fn take(&mut self, sent: Sent) -> Result<StepOutput, ModelError> {
        match sent.0 {
            SentTo::Stage(sent) => self.first_mut().take_step(*sent),
            SentTo::Stages(output) => Ok(*output),
        }
    }

    /// Runs a step through several stages.
    fn through_stages(
        &mut self,
        slices: &[Slice<'_>],
        samples: &[Sample<'_>],
        fill: &mut dyn FnMut(usize, &mut [u32]),
    ) -> Result<StepOutput, ModelError> {
        let rows: usize = slices.iter().map(|slice| slice.tokens.len()).sum();
        let parts = cut(slices, samples, self.part_rows(u32_of(rows)));
        let mut output = StepOutput::default();
        let overlaps = parts.len() > 1 && self.stages.iter().all(Decoder::only_hands_over);
        let mut take = |part: &Part<'_>, result| part.add_to(&mut output, result);
        if overlaps {
            self.overlapped(&parts, fill, &mut take)?;
        } else {
            for part in &parts {
                let result = self.in_turn(part, fill)?;
                take(part, result);
            }
        }
        Ok(output)
    }

    /// Number of rows of the parts of a step of `rows` rows.
    fn part_rows(&self, rows: u32) -> usize {
        let most = self.first().step_rows();
        rows.div_ceil(PARTS * u32_of(self.stages.len())).clamp(PART_ROWS.min(most), most) as usize
    }

    /// Runs a part in one stage after the other. A stage plans while the stage before it works.
    fn in_turn(
        &mut self,
        part: &Part<'_>,
        fill: &mut dyn FnMut(usize, &mut [u32]),
    ) -> Result<StepOutput, ModelError> {
        let last = self.stages.len() - 1;
        let mut output = StepOutput::default();
        let mut first_layer = 0;
        part.plan(&mut self.stages[0], false)?;
        for index in 0..=last {
            let (before, rest) = self.stages.split_at_mut(index + 1);
            let stage = &mut before[index];
            let sent = part.send(stage, index == last, fill)?;
            let result = match rest.first_mut() {
                None => stage.take_step(sent)?,
                Some(next) => {
                    part.plan(next, index + 1 == last)?;
                    pass_on(stage, sent, next)?
                }
            };
            output.append(result, first_layer);
            first_layer += stage.config().layers.len();
        }
        Ok(output)
    }

    /// Runs parts with all stages at work at the same time.
    fn overlapped(
        &mut self,
        parts: &[Part<'_>],
        fill: &mut dyn FnMut(usize, &mut [u32]),
        take: &mut dyn FnMut(&Part<'_>, StepOutput),
    ) -> Result<(), ModelError> {
        let (last, others) = self.stages.split_last_mut().expect("there is at least one stage");
        thread::scope(|scope| {
            let (mut before, mut first_layer) = (None, 0);
            let mut threads = Vec::with_capacity(others.len());
            for stage in others {
                // One part waits for the next stage, one is on its way there, and one is at work.
                let (sender, receiver) = sync_channel(1);
                let (received, first) = (before.replace(receiver), first_layer);
                first_layer += stage.config().layers.len();
                threads.push(scope.spawn(move || hand_over(stage, first, parts, received.as_ref(), &sender)));
            }
            // Masks are filled on the caller's thread.
            let finished = finish(last, first_layer, parts, before.as_ref(), fill, take);
            // The stages before end when nobody takes their parts.
            drop(before);
            let ended = threads.into_iter().map(|thread| thread.join().expect("a stage does not panic"));
            ended.chain([finished]).fold(Ok(()), Result::and)
        })
    }

    /// Copies blocks in all stages: see [`Decoder::copy_blocks`].
    ///
    /// # Errors
    /// Errors of the devices.
    pub fn copy_blocks(&mut self, pairs: &[(BlockId, BlockId)]) -> Result<(), ModelError> {
        self.stages.iter_mut().try_for_each(|stage| stage.copy_blocks(pairs))
    }

    /// Reads the contents of blocks in all layers: see [`Decoder::read_blocks`].
    ///
    /// # Errors
    /// Errors of the devices.
    pub fn read_blocks(&self, blocks: &[BlockId]) -> Result<Vec<Vec<u32>>, ModelError> {
        let mut contents = vec![Vec::new(); blocks.len()];
        for stage in &self.stages {
            for (all, part) in contents.iter_mut().zip(stage.read_blocks(blocks)?) {
                all.extend(part);
            }
        }
        Ok(contents)
    }

    /// Starts reading blocks: see [`Decoder::begin_read`].
    ///
    /// # Errors
    /// Errors of the devices.
    ///
    /// # Panics
    /// When there are more than [`BlockRead::MAX_BLOCKS`] blocks.
    pub fn begin_read(&self, blocks: &[BlockId]) -> Result<BlockRead, ModelError> {
        let mut reads = self.stages.iter().map(|stage| stage.begin_read(blocks));
        let first = reads.next().expect("there is at least one stage")?;
        reads.try_fold(first, |all, read| Ok(all.and(read?)))
    }

    /// Writes the contents of a block in all layers: see [`Decoder::write_block`].
    ///
    /// # Errors
    /// Errors of the devices.
    ///
    /// # Panics
    /// When `contents` is not a block of this cache.
    pub fn write_block(&mut self, block: BlockId, contents: &[u32]) -> Result<(), ModelError> {
        let mut rest = contents;
        for stage in &mut self.stages {
            let words = stage.kv().buffers().map(|(_, words)| words).sum();
            assert!(rest.len() >= words, "{} words of a block are missing", words - rest.len());
            let (own, others) = rest.split_at(words);
            stage.write_block(block, own)?;
            rest = others;
        }
        assert!(rest.is_empty(), "{} words too many for a block", rest.len());
        Ok(())
    }

    /// Requests the kernels of steps: see [`Decoder::prepare`].
    ///
    /// # Errors
    /// Errors of the devices.
    pub fn prepare(&mut self) -> Result<(), ModelError> {
        self.stages.iter_mut().try_for_each(Decoder::prepare)
    }

    /// Sets whether steps return selections: see [`Decoder::trace_selections`].
    pub fn trace_selections(&mut self, on: bool) {
        self.stages.iter_mut().for_each(|stage| stage.trace_selections(on));
    }

    /// Sets the context lengths below which decode rows attend everything: see [`Decoder::set_crossing`].
    ///
    /// # Errors
    /// Errors of the devices.
    pub fn set_crossing(&mut self, crossing: &Crossing) -> Result<(), ModelError> {
        self.stages.iter_mut().try_for_each(|stage| stage.set_crossing(crossing.clone()))
    }

    /// Sets the lengths below which chunks of prompts attend everything.
    pub fn set_chunk_crossing(&mut self, crossing: &ChunkCrossing) {
        self.stages.iter_mut().for_each(|stage| stage.set_chunk_crossing(crossing.clone()));
    }
}

/// Waits for a step of a stage, writes its residual to the device of the next one, and returns its results.
fn pass_on(stage: &mut Decoder, sent: SentStep, next: &Decoder) -> Result<StepOutput, ModelError> {
    if !stage.only_hands_over() {
        let output = stage.take_step(sent)?;
        next.write_residual(bytemuck::cast_slice(&output.residual));
        return Ok(output);
    }
    let (submission, residual, output) = stage.leave_step(sent);
    let residual = residual.expect("a stage before another one reads the residual");
    stage.gpu().collect_in_place(submission, |landed| next.write_residual(landed.bytes(&residual)))?;
    Ok(output)
}

/// Runs parts in a stage that is not the last one. Ends early if a stage before or after it has ended.
fn hand_over(
    stage: &mut Decoder,
    first_layer: usize,
    parts: &[Part<'_>],
    before: Option<&Receiver<Handover>>,
    next: &SyncSender<Handover>,
) -> Result<(), ModelError> {
    for part in parts {
        part.plan(stage, false)?;
        let Some(mut output) = receive(stage, before)? else { break };
        let sent = part.send(stage, false, &mut |_, _| {})?;
        let (submission, residual, own) = stage.leave_step(sent);
        output.append(own, first_layer);
        let residual = residual.expect("a stage before another one reads the residual");
        let handover = Handover { gpu: Arc::clone(stage.gpu()), submission, residual, output };
        if next.send(handover).is_err() {
            break;
        }
    }
    Ok(())
}

/// Runs parts in the last stage. Ends early if the stage before it has ended.
fn finish(
    stage: &mut Decoder,
    first_layer: usize,
    parts: &[Part<'_>],
    before: Option<&Receiver<Handover>>,
    fill: &mut dyn FnMut(usize, &mut [u32]),
    take: &mut dyn FnMut(&Part<'_>, StepOutput),
) -> Result<(), ModelError> {
    let (mut read, mut unread) = (None, None);
    let results = |stage: &mut Decoder, sent: SentStep, mut output: StepOutput| {
        output.append(stage.take_step(sent)?, first_layer);
        Ok::<_, ModelError>(output)
    };
    for part in parts {
        // The residual comes while the device works on the part before.
        let Some(mut output) = receive(stage, before)? else { break };
        if let Some((before, sent, output)) = read.take() {
            take(before, results(stage, sent, output)?);
        }
        part.plan(stage, true)?;
        let sent = part.send(stage, true, fill)?;
        if !part.is_unread() {
            read = Some((part, sent, output));
            continue;
        }
        let (submission, _, own) = stage.leave_step(sent);
        output.append(own, first_layer);
        take(part, output);
        // The device has the next part when it ends one.
        if let Some(before) = unread.replace(submission) {
            stage.gpu().collect(before)?;
        }
    }
    if let Some((before, sent, output)) = read {
        take(before, results(stage, sent, output)?);
    }
    Ok(())
}

/// Waits for the residual of the next part, writes it to the device of `stage`, and returns the results of the stages before;
/// `None` if the last of them has ended.
fn receive(stage: &Decoder, before: Option<&Receiver<Handover>>) -> Result<Option<StepOutput>, ModelError> {
    let Some(before) = before else { return Ok(Some(StepOutput::default())) };
    let Ok(Handover { gpu, submission, residual, output }) = before.recv() else { return Ok(None) };
    gpu.collect_beside(submission, |landed| stage.write_residual(landed.bytes(&residual)))?;
    Ok(Some(output))
}
