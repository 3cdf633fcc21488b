//! The life of a sequence: what it is asked for, the tokens it takes, and its end.

use std::sync::Arc;
use std::time::Instant;

use kvblock::SeqId;
use models::{Attended, Tokenizer};

use super::Engine;
use crate::Note;
use crate::event::{CachedTokens, Clock, Event, FinishReason, Finished, Token, Usage};
use crate::request::Request;
use crate::sampling::Sampling;
use crate::text::Text;
use crate::usage::SparseUse;

/// What the scheduler need not know about an unfinished sequence.
#[derive(Debug)]
pub(super) struct Live {
    pub(super) sampling: Sampling,
    pub(super) stop: Vec<String>,
    /// Tokens that end the sequence.
    pub(super) ends: Vec<u32>,
    pub(super) seed: u64,
    pub(super) deadline: Option<Instant>,
    pub(super) clock: Clock,
    pub(super) text: Option<Text>,
    /// Set once the engine, rather than the scheduler, has a reason to end the sequence.
    pub(super) reason: Option<FinishReason>,
    /// What it attended to under a sparse policy.
    pub(super) attended: Option<Attended>,
    pub(super) cached: CachedTokens,
    pub(super) prompt_tokens: u32,
    /// First sample of the request, which computes the prompt for all samples.
    pub(super) leader: SeqId,
    /// Index of this sample.
    pub(super) sample: u32,
}

impl Engine {
    /// The state of a sample of `request`.
    pub(super) fn live(&self, request: &Request, leader: SeqId, sample: u32) -> Live {
        let tokenizer = self.tokenizer.as_ref().filter(|_| request.text);
        let eos_ids = if request.ignore_eos { &[][..] } else { &self.decoder.config().eos_ids };
        let text = |t: &Arc<Tokenizer>| Text::new(t.clone(), request.stop.clone(), request.skip_special);
        Live {
            sampling: request.sampling.clone(),
            stop: request.stop.clone(),
            ends: request.stop_ids.iter().chain(eos_ids).copied().collect(),
            // Seeds of the samples of a prompt differ only by the sample's index, so a request's tokens do not
            // depend on the others.
            seed: request.sampling.seed.wrapping_add(u64::from(sample).wrapping_mul(0x9e37_79b9_7f4a_7c15)),
            deadline: request.deadline,
            clock: Clock::start(),
            text: tokenizer.map(text),
            reason: None,
            attended: None,
            cached: CachedTokens::default(),
            prompt_tokens: u32::try_from(request.prompt.len()).expect("the scheduler took the request"),
            leader,
            sample,
        }
    }

    /// Takes a sampled token; also returns whether it completes a stop text.
    pub(super) fn take(&mut self, seq: SeqId, id: u32, now: Instant) -> (Token, bool) {
        let started = self.live.get(&seq).and_then(|live| self.live.get(&live.leader)?.clock.started);
        let live = self.live.get_mut(&seq).expect("a sequence that samples is live");
        // A sample that shares its leader's prompt is not admitted before the leader has sampled.
        live.clock.started = live.clock.started.or(started);
        live.clock.first.get_or_insert(now);
        live.clock.last = Some(now);
        let mut token = Token { seq, sample: live.sample, id, text: String::new() };
        let (Some(text), false) = (&mut live.text, live.ends.contains(&id)) else {
            return (token, false);
        };
        match text.push(id) {
            Ok(piece) => {
                token.text = piece.text;
                live.reason = piece.stop.map(|stop| FinishReason::StopText(live.stop[stop].clone()));
            }
            Err(error) => {
                live.reason = Some(FinishReason::Failed);
                self.notes.tell(&Note::Undecodable { seq, reason: error.to_string() });
            }
        }
        (token, live.reason.is_some())
    }

    /// The end event of a sequence.
    pub(super) fn retire(&mut self, done: scheduler::Finished) -> Event {
        let live = self.live.remove(&done.seq).expect("a sequence ends once");
        let output = done.output().to_vec();
        let reason = live.reason.unwrap_or_else(|| match done.reason {
            scheduler::FinishReason::Stopped => match output.last() {
                Some(id) if !self.decoder.config().eos_ids.contains(id) => FinishReason::StopToken(*id),
                _ => FinishReason::EndOfSequence,
            },
            scheduler::FinishReason::LengthCapped => FinishReason::Length,
            scheduler::FinishReason::Aborted => FinishReason::Cancelled,
            scheduler::FinishReason::Failed => FinishReason::Failed,
        });
        self.totals.count(&reason);
        let text = live.text.map_or_else(String::new, |text| text.finish().unwrap_or_default());
        // A further sample shares the prompt of the first one, so all of it is cached on the device.
        let loaded = live.cached.total() - live.cached.device;
        let usage = Usage {
            prompt_tokens: done.prompt_len,
            cached: CachedTokens { device: done.cached_tokens - loaded, ..live.cached },
            generated_tokens: u32::try_from(output.len()).expect("a sequence has fewer than 2^32 tokens"),
            preemptions: done.preemptions,
            clock: live.clock,
            sparse: SparseUse::of(self.sparse.as_ref(), live.attended.as_ref()),
        };
        Event::Finished(Box::new(Finished {
            seq: done.seq,
            sample: live.sample,
            reason,
            text,
            output,
            usage,
        }))
    }
}
