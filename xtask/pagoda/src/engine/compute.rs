//! The device side of a step.

use std::collections::BTreeSet;
use std::time::Instant;

use kvblock::{BlockHash, BlockId, GroupBlock, SeqId};
use models::Sent;
use models::batch::{Phase, Sample, Slice, StepOutput};
use models::sampling::Allowed;
use scheduler::{SampleRow, StepPlan};

use super::Engine;
use super::early::SentPlan;
use crate::error::Error;
use crate::event::{Event, FinishReason};
use crate::kv_used::tables;
use crate::mask::{self, TokenMask};
use crate::tiers::{Filled, Unreadable};
use crate::{Note, verdicts};

/// Message of a panic that cannot happen, because sequences end between steps only.
const PLANNED: &str = "the sequences of a plan have not ended";
const LIVE: &str = "a sequence that samples is live";

impl Engine {
    /// Runs a plan on the device.
    pub(super) fn compute(&mut self, plan: &StepPlan) -> Result<StepOutput, Error> {
        self.host.run(&mut self.decoder, &plan.block_ops)?;
        if plan.slices.is_empty() {
            return Ok(StepOutput::default());
        }
        let step = match self.adopt(plan) {
            Some(adopted) => adopted,
            None => SentPlan::whole(self.send(plan)?),
        };
        if step.is_whole() {
            self.send_early(plan)?;
        }
        let mut output = self.wait_for(step)?;
        // Products choose their kernels by the rows of a step.
        for stage in self.decoder.stages() {
            verdicts::tell_passed_over(stage.gpu(), &self.options.notes);
        }
        self.count(plan, &mut output);
        Ok(output)
    }

    /// Sends the step of a plan to the device.
    fn send(&mut self, plan: &StepPlan) -> Result<Sent, Error> {
        let mut masks = self.take_masks(plan);
        let scheduler = &self.scheduler;
        let of_slice = |slice: &scheduler::Slice| tables(scheduler, slice.seq, self.kv_used.most.len());
        let tables: Vec<Vec<&[BlockId]>> = plan.slices.iter().map(of_slice).collect();
        let slice = |(slice, tables): (&scheduler::Slice, _)| {
            let live = &self.live[&slice.seq];
            let targets = live.prompt_targets(slice);
            Slice {
                tokens: scheduler.slice_tokens(slice).expect(PLANNED),
                first: slice.start,
                tables,
                phase: slice.phase,
                access: scheduler.access_history().counts(slice.seq),
                targets: &scheduler.tokens(slice.seq).expect(PLANNED)
                    [targets.start as usize..targets.end as usize],
                log_probs: live.prompt_log_probs,
                logits: 0,
                pooled: live.pooled_rows(slice),
                certify: live.certify || self.watch.looks_at(slice.seq),
            }
        };
        let slices: Vec<Slice<'_>> =
            plan.slices.iter().zip(tables.iter().map(Vec::as_slice)).map(slice).collect();
        let sample = |(row, masked): (&SampleRow, bool)| {
            let live = &self.live[&row.seq];
            let position = plan.slices[row.slice].end();
            live.sampler.sample(row.slice, position, masked.then_some(Allowed::Late))
        };
        let is_masked = masks.iter().map(Option::is_some);
        let samples: Vec<Sample<'_>> = plan.sample_rows.iter().zip(is_masked).map(sample).collect();
        let mut stuck = Vec::new();
        let mut fill = |index: usize, allowed: &mut [u32]| {
            let mask = masks[index].as_deref_mut().expect("only masks are filled");
            if !mask::fill(mask, allowed, samples[index].adjust.suppressed) {
                // The sequence ends without the token, which is drawn without the mask.
                allowed.fill(u32::MAX);
                stuck.push(index);
            }
        };
        let sent = self.decoder.send(&slices, &samples, &mut fill);
        for (row, mask) in plan.sample_rows.iter().zip(masks) {
            self.live.get_mut(&row.seq).expect(LIVE).mask = mask;
        }
        for index in stuck {
            let live = self.live.get_mut(&plan.sample_rows[index].seq).expect(LIVE);
            live.mask = None;
            live.reason = Some(FinishReason::NothingAllowed);
        }
        Ok(sent?)
    }

    /// Takes the masks of the sequences that draw, `[sample rows]`.
    fn take_masks(&mut self, plan: &StepPlan) -> Vec<Option<Box<dyn TokenMask>>> {
        let mask = |row: &SampleRow| self.live.get_mut(&row.seq).expect(LIVE).mask.take();
        plan.sample_rows.iter().map(mask).collect()
    }

    /// Adds the results of a step to the counters.
    fn count(&mut self, plan: &StepPlan, output: &mut StepOutput) {
        let prefills = plan.slices.iter().filter(|slice| slice.phase == Phase::Prefill);
        let (prefilled, drawn) =
            (prefills.map(|slice| u64::from(slice.len)).sum(), plan.sample_rows.len() as u64);
        self.totals.steps += 1;
        let placement = self.decoder.first().weight_placement();
        self.totals.streamed_weight_bytes += placement.map_or(0, |placement| placement.host_bytes);
        self.totals.prefill_tokens += prefilled;
        self.totals.generated_tokens += drawn;
        let now = Instant::now();
        self.prefill_rate.add(prefilled, now);
        self.decode_rate.add(drawn, now);
        for timing in &output.timings {
            let (count, ns) = self.kernel_ns.entry(timing.kernel).or_default();
            *count += 1;
            *ns += timing.ns;
        }
        for (slice, attended) in plan.slices.iter().zip(std::mem::take(&mut output.attended)) {
            let Some(attended) = attended else { continue };
            self.scheduler.record_access(slice.seq, &attended.accessed);
            self.look_at(slice, &attended);
            let live = self.live.get_mut(&slice.seq).expect("a sequence in a step is live");
            live.attended.get_or_insert_default().add(&attended);
        }
    }

    /// Copies the blocks that tiers have read to the device, and requests blocks for the next steps. Returns the end events
    /// of requests whose blocks could not be read.
    pub(super) fn look_ahead(&mut self) -> Result<Vec<Event>, Error> {
        let Some(tiers) = &mut self.tiers else { return Ok(Vec::new()) };
        let unreadable = tiers.arrive(&mut self.scheduler, &mut self.decoder)?;
        tiers.look_ahead(&mut self.scheduler);
        let mut events = Vec::new();
        for Unreadable { seq, from_token, reason, ends } in unreadable {
            let id = self.live[&seq].id.clone();
            self.options.notes.tell(&Note::KvUnreadable { id, from_token, reason, ends });
            if ends {
                events.extend(self.end(seq, scheduler::Ending::Failed));
            }
        }
        Ok(events)
    }

    /// Saves the blocks that a step filled, except those of the given sequences.
    pub(super) fn save(&mut self, plan: &StepPlan, without: &BTreeSet<SeqId>) -> Result<(), Error> {
        let Some(tiers) = &mut self.tiers else { return Ok(()) };
        let kept = plan.slices.iter().filter(|slice| !without.contains(&slice.seq));
        let mut all = Vec::new();
        for slice in kept {
            let hashes = self.scheduler.block_hashes(slice.seq).expect(PLANNED);
            let origin = tiers.computed(slice.seq, slice.phase);
            let filled: Vec<(GroupBlock, BlockHash)> =
                tiers.filled(slice.start..slice.end(), hashes).collect();
            let content = self.scheduler.content(slice.seq).expect(PLANNED);
            tiers.know(content, filled.iter().map(|(block, _)| *block));
            all.extend(filled.into_iter().map(|(GroupBlock { group, index }, hash)| {
                let id = self.scheduler.block_table(slice.seq, group)[index as usize];
                Filled { group, hash, id, origin }
            }));
        }
        Ok(tiers.save(&self.decoder, &all)?)
    }

    /// Lets the tiers finish once all sequences have ended.
    pub(super) fn settle(&mut self) -> Result<(), Error> {
        match self.tiers.as_mut().filter(|_| !self.scheduler.has_work()) {
            Some(tiers) => Ok(tiers.settle()?),
            None => Ok(()),
        }
    }
}
