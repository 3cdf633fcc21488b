//! The life of a sequence: its request, its tokens, and its end.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use kvblock::SeqId;
use models::batch::StepOutput;
use models::kernel::sample::NOT_FINITE;
use models::kernel::top_logits::MAX_TOP;
use models::sampling::{LogProbs, Sampler, SamplingError};
use models::{Attended, Tokenizer};
use scheduler::{Slice, StepPlan};

use super::Engine;
use super::pool::Pool;
use crate::Note;
use crate::error::Error;
use crate::event::{CachedTokens, Clock, Event, FinishReason, Finished, PromptLogProbs, Token, Usage};
use crate::mask::TokenMask;
use crate::request::{Request, RequestId};
use crate::text::{Piece, Text};
use crate::tiers::Tiers;
use crate::usage::{self, SparseUse};

/// State of an unfinished sequence that the scheduler need not know.
#[derive(Debug)]
pub(super) struct Live {
    pub(super) id: RequestId,
    /// Sampler of the sequence; its stop ids are all tokens that end the sequence.
    pub(super) sampler: Sampler,
    pub(super) mask: Option<Box<dyn TokenMask>>,
    pub(super) stop: Vec<String>,
    /// Number of likely tokens to return for each prompt token.
    pub(super) prompt_log_probs: Option<u32>,
    /// Position of the next prompt token to score.
    pub(super) prompt_scored: u32,
    /// The embedding of the prompt, if it was requested. Further samples have none.
    pub(super) pool: Option<Pool>,
    pub(super) deadline: Option<Instant>,
    /// Whether the mass that the sparse policy keeps is certified.
    pub(super) certify: bool,
    pub(super) clock: Clock,
    pub(super) text: Option<Text>,
    /// Reason of the engine, rather than the scheduler, to end the sequence; `None` until it has one.
    pub(super) reason: Option<FinishReason>,
    /// Blocks that the sequence attended to under a sparse policy.
    pub(super) attended: Option<Attended>,
    pub(super) cached: CachedTokens,
    pub(super) prompt_tokens: u32,
    /// First sample of the request, which computes the prompt for all samples.
    pub(super) leader: SeqId,
    /// Index of this sample.
    pub(super) sample: u32,
}

impl Live {
    /// Positions of the prompt tokens that a slice scores; empty if they were not requested.
    pub(super) fn prompt_targets(&self, slice: &Slice) -> Range<u32> {
        let wanted = self.prompt_log_probs.is_some();
        let end = if wanted { (slice.end() + 1).min(self.prompt_tokens) } else { 0 };
        slice.start + 1..end.max(slice.start + 1)
    }

    /// Number of rows to pool, at the end of a slice.
    pub(super) fn pooled_rows(&self, slice: &Slice) -> usize {
        self.pool.as_ref().map_or(0, |pool| pool.rows(slice, self.prompt_tokens))
    }
}

impl Engine {
    /// Refuses requests that no sample could satisfy, whatever the free memory.
    pub(super) fn check(&self, request: &Request) -> Result<(), Error> {
        let vocab = self.decoder.config().vocab_size;
        if let Some((position, id)) = request.prompt.iter().enumerate().find(|(_, id)| **id >= vocab) {
            return Err(Error::Token { id: *id, position, vocab });
        }
        if !request.stop.is_empty() && (self.model.tokenizer.is_none() || !request.text) {
            return Err(Error::StopText);
        }
        request.sampling.check(vocab)?;
        if let Some(asked) = request.prompt_log_probs.filter(|asked| *asked > MAX_TOP) {
            return Err(SamplingError::LogProbs { asked, max: MAX_TOP }.into());
        }
        let certifies = self.options.sparse.as_ref().is_some_and(|sparse| sparse.policy.certifies());
        if request.certify && !certifies {
            return Err(Error::NoCertificate { policy: usage::policy(self.spec(), false) });
        }
        Ok(())
    }

    /// The state of a sample of `request`, whose prompt the scheduler has.
    pub(super) fn live(&self, request: &Request, leader: SeqId, sample: u32) -> Live {
        let tokenizer = self.model.tokenizer.as_ref().filter(|_| request.text);
        let config = self.decoder.config();
        let prompt = self.scheduler.tokens(leader).expect("the scheduler took the request");
        let eos_ids = if request.ignore_eos { &[][..] } else { &config.eos_ids };
        let mut sampling = request.sampling.clone();
        sampling.stop_ids.extend(eos_ids);
        // Seeds of the samples of a prompt differ only by the sample's index, so a request's tokens do not
        // depend on the others.
        sampling.seed = sampling.seed.wrapping_add(u64::from(sample).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let text = |t: &Arc<Tokenizer>| Text::new(t.clone(), request.stop.clone(), request.skip_special);
        Live {
            id: request.id.clone().unwrap_or_else(|| RequestId::of(leader)),
            sampler: Sampler::new(sampling, prompt),
            mask: request.mask.clone(),
            stop: request.stop.clone(),
            prompt_log_probs: request.prompt_log_probs,
            prompt_scored: 1,
            pool: request
                .pooling
                .filter(|_| sample == 0)
                .map(|pooling| Pool::new(pooling, config.hidden_size)),
            deadline: request.deadline,
            certify: request.certify,
            clock: Clock::start(),
            text: tokenizer.map(text),
            reason: None,
            attended: None,
            cached: CachedTokens::default(),
            prompt_tokens: u32::try_from(prompt.len()).expect("the scheduler counts tokens in 32 bits"),
            leader,
            sample,
        }
    }

    /// Takes the tokens of a step. Returns the sequences that end for a reason that the scheduler does not know.
    pub(super) fn take_tokens(
        &mut self,
        plan: &StepPlan,
        output: &mut StepOutput,
        events: &mut Vec<Event>,
    ) -> Vec<SeqId> {
        let now = Instant::now();
        let mut ended = Vec::new();
        let mut log_probs = std::mem::take(&mut output.log_probs).into_iter();
        for (row, id) in plan.sample_rows.iter().zip(&output.sampled) {
            let log_probs = log_probs.next().flatten();
            let token = Token { seq: row.seq, sample: 0, at: now, id: *id, text: String::new(), log_probs };
            let taken = self.take(token);
            ended.extend(taken.as_ref().is_none_or(|(_, ends)| *ends).then_some(row.seq));
            events.extend(taken.map(|(token, _)| Event::Token(token)));
        }
        ended
    }

    /// Takes the log-probabilities of prompt tokens. Skips recomputed tokens, whose log-probabilities were taken
    /// before.
    pub(super) fn take_prompts(&mut self, plan: &StepPlan, output: &mut StepOutput, events: &mut Vec<Event>) {
        let mut all = std::mem::take(&mut output.target_log_probs).into_iter();
        for slice in &plan.slices {
            let live = self.live.get_mut(&slice.seq).expect("a sequence in a step is live");
            let targets = live.prompt_targets(slice);
            let first = live.prompt_scored.max(targets.start);
            let of_slice = all.by_ref().take(targets.len());
            let log_probs: Vec<LogProbs> = of_slice.skip((first - targets.start) as usize).collect();
            if !log_probs.is_empty() && live.reason.is_none() {
                live.prompt_scored = targets.end;
                events.push(Event::Prompt(PromptLogProbs { seq: slice.seq, first, log_probs }));
            }
        }
    }

    /// Takes a sampled token. `None` if its sequence ended without it; otherwise also whether it ends the
    /// sequence for a reason that the scheduler does not know.
    fn take(&mut self, mut token: Token) -> Option<(Token, bool)> {
        let (seq, id) = (token.seq, token.id);
        let started = self.live.get(&seq).and_then(|live| self.live.get(&live.leader)?.clock.started);
        let live = self.live.get_mut(&seq).expect("a sequence that samples is live");
        // A sample that shares its leader's prompt is not admitted before the leader has sampled.
        live.clock.started = live.clock.started.or(started);
        if live.reason.is_some() {
            return None;
        }
        live.clock.first.get_or_insert(token.at);
        live.clock.last = Some(token.at);
        token.sample = live.sample;
        live.sampler.push(id);
        if live.sampler.sampling().stop_ids.contains(&id) {
            return Some((token, false));
        }
        if let Some(mask) = &mut live.mask {
            mask.accept(id);
            if mask.is_complete() {
                live.reason = Some(FinishReason::Complete);
            }
        }
        match live.text.as_mut().map_or(Ok(Piece::default()), |text| text.push(id)) {
            Ok(Piece { text, stop }) => {
                token.text = text;
                live.reason =
                    stop.map(|stop| FinishReason::StopText(live.stop[stop].clone())).or(live.reason.take());
            }
            Err(error) => {
                live.reason = Some(FinishReason::Failed);
                self.options
                    .notes
                    .tell(&Note::Undecodable { id: live.id.clone(), reason: error.to_string() });
            }
        }
        Some((token, live.reason.is_some()))
    }

    /// Removes an ended sequence, and returns the event of its end.
    pub(super) fn retire(&mut self, done: scheduler::Finished) -> Event {
        let live = self.live.remove(&done.seq).expect("a sequence ends once");
        if let Some(tiers) = &mut self.tiers {
            tiers.cancel(done.seq);
        }
        let mut output = done.output().to_vec();
        if live.reason == Some(FinishReason::NothingAllowed) || output.last() == Some(&NOT_FINITE) {
            // The last token was drawn without the mask, or is none.
            output.pop();
        }
        let reason = live.reason.unwrap_or_else(|| match done.reason {
            scheduler::Ending::Stopped => match output.last() {
                Some(id) if !self.decoder.config().eos_ids.contains(id) => FinishReason::StopToken(*id),
                _ => FinishReason::EndOfSequence,
            },
            scheduler::Ending::LengthCapped => FinishReason::Length,
            scheduler::Ending::Aborted => FinishReason::Cancelled,
            scheduler::Ending::Failed => FinishReason::Failed,
        });
        self.totals.count(&reason);
        let mut text = live.text.map_or_else(String::new, |text| text.finish().unwrap_or_default());
        if reason == FinishReason::Length {
            // Part of a character, the rest of which did not come.
            text.truncate(text.trim_end_matches('\u{FFFD}').len());
        }
        // A further sample shares the prompt of the first one, so all of it is cached on the device.
        let loaded = live.cached.total() - live.cached.device;
        let usage = Usage {
            prompt_tokens: done.prompt_len,
            cached: CachedTokens { device: done.cached_tokens - loaded, ..live.cached },
            generated_tokens: u32::try_from(output.len()).expect("a sequence has fewer than 2^32 tokens"),
            preemptions: done.preemptions,
            clock: live.clock,
            sparse: SparseUse::of(self.spec(), live.attended.as_ref()).on(self.decoder.first()),
        };
        let embedding = live.pool.and_then(|pool| pool.embedding(done.prompt_len));
        let (id, seq, sample) = (live.id, done.seq, live.sample);
        let saves = self.tiers.as_ref().map(Tiers::saves);
        let end = Finished { id, seq, sample, reason, text, output, embedding, usage, saves };
        self.watch.ended(&end, Instant::now());
        Event::Finished(Box::new(end))
    }
}
