//! Beam search over the engine: hypotheses are sequences that share blocks, by fork and copy on write.

use std::time::Instant;

use kvblock::{LengthLimits, SeqId};
use scheduler::StepPlan;

use super::{Engine, Live};
use crate::beams::{Beam, BeamSearch};
use crate::error::Error;
use crate::event::Clock;
use crate::request::Request;
use crate::top::most_likely;

/// The hypotheses of one prompt and what they cost.
#[derive(Debug)]
pub struct Beams {
    /// Best first.
    pub best: Vec<Beam>,
    /// Times of the search.
    pub clock: Clock,
    /// Number of prompt tokens found in the prefix cache.
    pub cached_tokens: u32,
    /// Whether the search was interrupted.
    pub aborted: bool,
}

/// A search under way.
struct Search {
    beams: BeamSearch,
    /// The sequence of each live hypothesis; at first that of the prompt.
    seqs: Vec<SeqId>,
    clock: Clock,
    cached_tokens: u32,
}

impl Live {
    /// The state of a hypothesis that continues this one; beams have no text of their own.
    fn fork(&self) -> Self {
        Self {
            sampler: self.sampler.clone(),
            mask: None,
            stop: Vec::new(),
            text: None,
            reason: None,
            attended: None,
            ..*self
        }
    }
}

impl Engine {
    /// Searches the continuations of one prompt with [`Request::samples`] beams. Nothing else may run: the
    /// beams of a step are compared with each other, so all must get their token in the same step.
    ///
    /// # Errors
    /// If the prompt's beams can never fit, with the sizes, and errors of the device.
    pub fn beam_search(&mut self, request: &Request, interrupted: impl Fn() -> bool) -> Result<Beams, Error> {
        if self.has_work() {
            return Err(Error::NotAlone);
        }
        self.check_beams(request)?;
        let eos_ids = if request.ignore_eos { Vec::new() } else { self.decoder.config().eos_ids.clone() };
        // An end of sequence ends a hypothesis, never the sequence: its siblings continue.
        let first = self.submit(&Request { ignore_eos: true, text: false, ..request.clone() })?;
        let mut search = Search {
            beams: BeamSearch::new(request.samples as usize, request.prompt.len(), &eos_ids),
            seqs: vec![first],
            clock: self.live[&first].clock,
            cached_tokens: 0,
        };
        let mut aborted = false;
        while self.has_work() {
            aborted = interrupted();
            if aborted || search.beams.live().is_empty() {
                let seqs: Vec<SeqId> = self.live.keys().copied().collect();
                seqs.into_iter().for_each(|seq| drop(self.cancel(seq)));
                break;
            }
            if !self.look_ahead()?.is_empty() {
                return Err(Error::KvUnreadable);
            }
            let plan = self.plan(&mut Vec::new());
            self.search_step(&plan, &mut search)?;
            self.settle()?;
        }
        let Search { beams, clock, cached_tokens, .. } = search;
        Ok(Beams { best: beams.finish(), clock, cached_tokens, aborted })
    }

    /// Refuses a search that could outgrow the pool: no beam may lose its blocks while others wait for it.
    fn check_beams(&self, request: &Request) -> Result<(), Error> {
        let config = self.decoder.config();
        let prompt_len = u32::try_from(request.prompt.len()).unwrap_or(u32::MAX);
        let longest =
            prompt_len.saturating_add(request.max_tokens).min(config.context_length).saturating_sub(1);
        let limits = LengthLimits::new(longest).max_batched_tokens(self.max_batched_tokens);
        let of_group = |group: &kvblock::KvCacheGroup| {
            let (spec, beams) = (group.spec, u64::from(request.samples));
            let shared = u64::from(prompt_len / spec.block_size.get());
            let own = u64::from(spec.block_size.blocks_for(longest)).saturating_sub(shared);
            (shared + beams * own).min(beams * u64::from(spec.max_blocks_per_seq(limits)))
        };
        let blocks: u64 = self.decoder.kv().plan().layout.groups.iter().map(of_group).sum();
        let pool_blocks = self.scheduler.cache().pool().num_usable();
        if blocks > u64::from(pool_blocks) {
            return Err(Error::Beams { blocks, beams: request.samples, tokens: longest, pool_blocks });
        }
        Ok(())
    }

    /// Computes a step and lets the sequences follow the surviving hypotheses.
    fn search_step(&mut self, plan: &StepPlan, search: &mut Search) -> Result<(), Error> {
        let mut output = self.compute(plan, true)?;
        if let Some((_, lost)) = output.lost.pop() {
            self.abandon(plan);
            return Err(models::ModelError::from(lost).into());
        }
        let bad = self.discard_bad(plan, &mut output)?;
        if let Some(slice) = plan.slices.iter().find(|slice| bad.contains(&slice.seq)) {
            let tokens = slice.end() as usize;
            self.abandon(plan);
            return Err(Error::NonFinite { tokens });
        }
        self.save(plan, &bad)?;
        let rows: Vec<SeqId> = plan.sample_rows.iter().map(|row| row.seq).collect();
        if rows.is_empty() {
            self.scheduler.complete(plan, &[]);
            return Ok(());
        }
        let now = Instant::now();
        let clock = &mut search.clock;
        if clock.first.is_none() {
            (clock.first, clock.started) = (Some(now), self.live[&search.seqs[0]].clock.started);
            search.cached_tokens = self.scheduler.cached_tokens(search.seqs[0]).unwrap_or(0);
        }
        clock.last = Some(now);

        let row_of =
            |seq: SeqId| rows.iter().position(|row| *row == seq).expect("every beam is in every step");
        let candidates = self.candidates(plan, &output.logits, search, row_of);
        let begins = search.seqs.len() < rows.len();
        let children = search.beams.advance(&candidates);
        // In the first step, all rows follow the prompt: one row for each hypothesis.
        let place = |(child, (parent, _)): (usize, &(usize, u32))| {
            if begins { child } else { row_of(search.seqs[*parent]) }
        };
        let mut owned: Vec<Vec<usize>> = vec![Vec::new(); rows.len()];
        for (child, from) in children.iter().enumerate() {
            owned[place((child, from))].push(child);
        }
        let tokens: Vec<Vec<u32>> =
            owned.iter().map(|own| own.iter().map(|child| children[*child].1).collect()).collect();
        let tokens: Vec<&[u32]> = tokens.iter().map(Vec::as_slice).collect();
        let (forks, ended) = self.scheduler.complete_beams(plan, &tokens);
        search.seqs = vec![rows[0]; children.len()];
        for ((row, own), forks) in rows.iter().zip(owned).zip(forks) {
            for fork in &forks {
                let live = self.live[row].fork();
                self.live.insert(*fork, live);
            }
            let seqs = std::iter::once(*row).chain(forks);
            own.into_iter().zip(seqs).for_each(|(child, seq)| search.seqs[child] = seq);
        }
        ended.into_iter().for_each(|done| drop(self.retire(done)));
        Ok(())
    }

    /// The most likely tokens of every live hypothesis, `[live][candidates]`.
    fn candidates(
        &self,
        plan: &StepPlan,
        logits: &[f32],
        search: &Search,
        row_of: impl Fn(SeqId) -> usize,
    ) -> Vec<Vec<(u32, f32)>> {
        let vocab = self.decoder.config().vocab_size as usize;
        let of_seq = |seq: &SeqId| {
            let slice = plan.sample_rows[row_of(*seq)].slice;
            // There are logits only for slices that sample, in their order.
            let row = plan.slices[..slice].iter().filter(|slice| slice.samples).count();
            let (ids, log_probs) =
                most_likely(&logits[row * vocab..][..vocab], search.beams.num_candidates());
            ids.into_iter().zip(log_probs).collect()
        };
        search.seqs.iter().map(of_seq).collect()
    }
}
