//! Decode steps that are sent before the tokens of the step before them are read, so that the device never waits for the host:
//! async scheduling in vLLM, the overlap scheduler of SGLang.
//!
//! While a step runs, the engine sends the next one for the same sequences; the device takes the drawn tokens where the sampler
//! left them. The next plan adopts its rows. A sequence that has ended in the meantime leaves its row unused: the row wrote to
//! a slot that held nothing, before anyone else could write there. Requests that arrive are planned one step later.

use std::time::Instant;

use attn_kernels::gpu::Gpu;
use kvblock::{BlockId, SeqId};
use models::Sent;
use models::batch::{Sample, Slice, StepOutput};
use scheduler::{Phase, StepPlan};

use super::Engine;
use super::live::Live;
use crate::error::Error;
use crate::kv_used::{group_id, tables};
use crate::options::EngineOptions;

/// The step that was sent before it was planned, if there is one.
#[derive(Debug)]
pub(super) struct Early {
    is_on: bool,
    step: Option<EarlyStep>,
}

#[derive(Debug)]
struct EarlyStep {
    sent: Sent,
    rows: Vec<Row>,
    /// Time at which the step before this one ended.
    begun: Instant,
}

/// The token of one sequence in the step that was sent early.
#[derive(Debug, PartialEq, Eq)]
struct Row {
    seq: SeqId,
    position: u32,
    /// Block that holds the position in each group, `[groups]`.
    blocks: Vec<BlockId>,
}

impl Early {
    pub(super) fn new(options: &EngineOptions, gpu: &Gpu) -> Self {
        // A software driver would compute rows that nobody needs on the processors that the host needs.
        Self { is_on: options.async_scheduling.unwrap_or_else(|| !gpu.is_cpu()), step: None }
    }

    /// Start time of the step to be planned next: the present time, unless that step was sent early.
    pub(super) fn begun(&self) -> Instant {
        self.step.as_ref().map_or_else(Instant::now, |step| step.begun)
    }
}

/// A plan's step that was sent to the device.
#[derive(Debug)]
pub(super) struct SentPlan {
    sent: Sent,
    /// Row of the step for each slice of the plan; `None` if rows and slices have the same order.
    rows: Option<Vec<usize>>,
}

impl SentPlan {
    /// A step that was sent as planned.
    pub(super) fn whole(sent: Sent) -> Self {
        Self { sent, rows: None }
    }

    /// Whether the step has exactly the rows of the plan, in the same order.
    pub(super) fn is_whole(&self) -> bool {
        self.rows.is_none()
    }
}

impl Engine {
    /// Limits the prompt tokens of the next plan: a step that was sent early has room for none.
    pub(super) fn limit_prefill(&mut self) {
        if self.scheduler.running().is_empty() {
            // Its sequences have ended.
            self.early.step = None;
        }
        let paced = self.pacing.prefill_tokens(self.scheduler.concurrency());
        let limit = if self.early.step.is_some() { 0 } else { paced.unwrap_or(u32::MAX) };
        self.scheduler.limit_prefill(limit);
    }

    /// Takes the step that was sent early, if its rows include those of `plan`.
    pub(super) fn adopt(&mut self, plan: &StepPlan) -> Option<SentPlan> {
        let EarlyStep { sent, rows, .. } = self.early.step.take()?;
        if !draws_after_each(plan) {
            return None;
        }
        let mut of_step = rows.iter().enumerate();
        let mut place = |slice: &scheduler::Slice| {
            let row = Row {
                seq: slice.seq,
                position: slice.start,
                blocks: self.blocks_at(slice.seq, slice.start)?,
            };
            of_step.find(|(_, of_step)| **of_step == row).map(|(place, _)| place)
        };
        let places: Vec<usize> = plan.slices.iter().map(&mut place).collect::<Option<_>>()?;
        Some(SentPlan { sent, rows: (places.len() < rows.len()).then_some(places) })
    }

    /// Waits for a step, and returns the results of the rows of its plan.
    pub(super) fn wait_for(&mut self, step: SentPlan) -> Result<StepOutput, Error> {
        let mut output = self.decoder.take(step.sent)?;
        if let Some(rows) = step.rows {
            output.sampled = rows.into_iter().map(|row| output.sampled[row]).collect();
        }
        if let Some(step) = &mut self.early.step {
            step.begun = Instant::now();
        }
        Ok(output)
    }

    /// Sends the step after `plan`, whose own step was sent last, if all sequences decode and none waits to join them.
    pub(super) fn send_early(&mut self, plan: &StepPlan) -> Result<(), Error> {
        // A sequence that runs and is not in the plan has a prompt to compute.
        let all =
            plan.slices.len() == self.scheduler.running().len() && self.scheduler.waiting().next().is_none();
        if !self.early.is_on || !all || !draws_after_each(plan) || !self.decoder.can_be_followed() {
            return Ok(());
        }
        let rows: Option<Vec<Row>> = plan.slices.iter().map(|slice| self.next_row(slice)).collect();
        let Some(rows) = rows else { return Ok(()) };
        let num_groups = self.kv_used.most.len();
        let tables: Vec<Vec<&[BlockId]>> =
            rows.iter().map(|row| tables(&self.scheduler, row.seq, num_groups)).collect();
        let slice = |(row, tables): (&Row, _)| Slice::new(&[0], row.position, tables, Phase::Decode);
        let slices: Vec<Slice<'_>> = rows.iter().zip(tables.iter().map(Vec::as_slice)).map(slice).collect();
        let sample =
            |(index, row): (usize, &Row)| self.live[&row.seq].sampler.sample(index, row.position + 1, None);
        let samples: Vec<Sample<'_>> = rows.iter().enumerate().map(sample).collect();
        let sent = self.decoder.send_following(&slices, &samples)?;
        self.early.step = Some(EarlyStep { sent, rows, begun: Instant::now() });
        Ok(())
    }

    /// The row after a slice; `None` if its sequence is known to end with the slice, its next sample depends on the token that
    /// the slice draws, or no block is free for it.
    fn next_row(&mut self, slice: &scheduler::Slice) -> Option<Row> {
        let (seq, position) = (slice.seq, slice.end());
        let goes_on = self.scheduler.output_left(seq) > 1 && self.live[&seq].is_predictable();
        if !goes_on || !self.scheduler.reserve_next(seq) {
            return None;
        }
        Some(Row { seq, position, blocks: self.blocks_at(seq, position)? })
    }

    /// The block of a position in each group; `None` if a group has none for it.
    fn blocks_at(&self, seq: SeqId, position: u32) -> Option<Vec<BlockId>> {
        let block = |(group, of_group): (usize, &kvblock::KvCacheGroup)| {
            let index = position / of_group.spec.block_size.get();
            self.scheduler.block_table(seq, group_id(group)).get(index as usize).copied()
        };
        self.decoder.plan().layout.groups.iter().enumerate().map(block).collect()
    }
}

impl Live {
    /// Whether the sample after the next one is known before the next token is.
    fn is_predictable(&self) -> bool {
        self.mask.is_none() && self.reason.is_none() && !self.certify && self.sampler.is_predictable()
    }
}

/// Whether a plan only decodes: each sequence has one token, and draws the next one.
fn draws_after_each(plan: &StepPlan) -> bool {
    let decodes = |slice: &scheduler::Slice| slice.phase == Phase::Decode && slice.len == 1;
    let own = |(index, row): (usize, &scheduler::SampleRow)| {
        row.slice == index && plan.slices.get(index).is_some_and(|slice| slice.seq == row.seq)
    };
    plan.slices.iter().all(decodes)
        && plan.sample_rows.len() == plan.slices.len()
        && plan.sample_rows.iter().enumerate().all(own)
}
