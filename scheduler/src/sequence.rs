//! State of one sequence.

use kvblock::{HashChain, SeqContent, SeqId, TokenId};

use crate::host::SavedTables;
use crate::plan::Slice;
use crate::request::{Finished, Request};
use crate::waiting::QueuePlace;
use crate::{Ending, Phase};

/// Status of a sequence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    /// Waits, and has not run yet.
    Waiting,
    /// Runs.
    Running,
    /// Waits for KV that is being loaded.
    WaitingForRemoteKv,
    /// Lost its device blocks while running, and waits to resume.
    Preempted,
}

#[derive(Clone, Debug)]
pub(crate) struct Sequence {
    pub(crate) id: SeqId,
    pub(crate) status: Status,
    /// Place of the sequence in the waiting queue; `None` while it runs.
    pub(crate) place: Option<QueuePlace>,
    /// The request; its prompt moved to `tokens`.
    pub(crate) request: Request,
    /// Priority with age, and order of arrival of the request.
    order: (i64, u64),
    /// Confirmed tokens, then drafts.
    pub(crate) tokens: Vec<TokenId>,
    /// Number of confirmed tokens.
    pub(crate) num_tokens: u32,
    pub(crate) prompt_len: u32,
    /// Number of tokens whose KV is in the blocks, or will be once the step in flight completes.
    pub(crate) computed: u32,
    /// Position below which tokens are prefill: the prompt, or all tokens that a preemption dropped.
    pub(crate) prefill_until: u32,
    pub(crate) chain: HashChain,
    /// Number of tokens found in the prefix cache when the sequence was first scheduled.
    pub(crate) cached_tokens: Option<u32>,
    pub(crate) preemptions: u32,
    /// Number of leading tokens whose KV may still be loaded from outside.
    pub(crate) loadable: u32,
    /// Status to return to after a load.
    pub(crate) before_load: Status,
    /// Tables of the saved blocks, after a preemption by swap.
    pub(crate) saved: Option<SavedTables>,
    /// Samples that start as copies of this sequence once its prompt is computed.
    pub(crate) pending_samples: Vec<SeqId>,
}

impl Sequence {
    pub(crate) fn new(id: SeqId, mut request: Request, order: (i64, u64), mut chain: HashChain) -> Self {
        let tokens = core::mem::take(&mut request.prompt);
        let prompt_len =
            u32::try_from(tokens.len()).expect("admission bounds the prompt by the context length");
        chain.extend(&tokens);
        let pending_samples = (1..u64::from(request.num_samples)).map(|i| SeqId::new(id.get() + i)).collect();
        Self {
            id,
            status: Status::Waiting,
            place: None,
            request,
            order,
            tokens,
            num_tokens: prompt_len,
            prompt_len,
            computed: 0,
            prefill_until: prompt_len,
            chain,
            cached_tokens: None,
            preemptions: 0,
            loadable: u32::MAX,
            before_load: Status::Waiting,
            saved: None,
            pending_samples,
        }
    }

    /// Another sample of the same prompt, at the moment the prompt is computed.
    pub(crate) fn fork(&self, child: SeqId) -> Self {
        Self { id: child, place: None, pending_samples: Vec::new(), ..self.clone() }
    }

    /// Number of running sequences that this sequence counts as: itself and the samples that will join it.
    pub(crate) fn num_seats(&self) -> usize {
        1 + self.pending_samples.len()
    }

    pub(crate) fn content(&self) -> SeqContent<'_> {
        SeqContent::new(&self.tokens[..self.num_tokens as usize], self.chain.hashes())
            .extra_keys(Some(self.chain.extra_keys()))
    }

    /// The slice that computes `len` more tokens.
    pub(crate) fn next_slice(&self, len: u32) -> Slice {
        let phase = if self.computed < self.prefill_until { Phase::Prefill } else { Phase::Decode };
        let samples = self.request.max_tokens > 0 && self.computed + len >= self.num_tokens;
        Slice { seq: self.id, start: self.computed, len, samples, phase }
    }

    /// Whether the sequence ends when the step in flight completes, because its prompt is then computed and it has no
    /// output.
    pub(crate) const fn ends_computed(&self) -> bool {
        self.request.max_tokens == 0 && self.computed >= self.num_tokens
    }

    /// Starts over after the blocks were freed. The sequence is not loaded again: blocks that wait for a load
    /// cannot be reclaimed, so repeated loads could starve another sequence.
    pub(crate) fn restart(&mut self) {
        self.request.external_tokens = 0;
        self.loadable = 0;
        self.computed = 0;
        self.prefill_until = self.num_tokens;
    }

    /// Number of tokens that the sequence may still sample.
    pub(crate) fn output_left(&self, max_model_len: u32) -> u32 {
        let output = self.num_tokens - self.prompt_len;
        self.request.max_tokens.saturating_sub(output).min(max_model_len.saturating_sub(self.num_tokens))
    }

    /// Replaces the draft tokens and returns their number. Only a decoding sequence can have drafts; the output limit, less
    /// the token that is always sampled, bounds their number.
    pub(crate) fn set_drafts(&mut self, drafts: &[TokenId], max_drafts: u32) -> u32 {
        self.drop_drafts();
        let output = self.num_tokens - self.prompt_len;
        let left = self.request.max_tokens.saturating_sub(output + 1).min(max_drafts);
        let decodes = self.status == Status::Running && self.computed + 1 == self.num_tokens && output > 0;
        let drafts = if decodes { &drafts[..drafts.len().min(left as usize)] } else { &[] };
        self.tokens.extend_from_slice(drafts);
        u32::try_from(drafts.len()).expect("cut to a u32")
    }

    pub(crate) fn drop_drafts(&mut self) {
        self.tokens.truncate(self.num_tokens as usize);
    }

    /// Appends a sampled token. Returns the reason if the sequence ends with it.
    pub(crate) fn push(&mut self, token: TokenId, max_model_len: u32) -> Option<Ending> {
        self.tokens.push(token);
        self.num_tokens += 1;
        self.chain.extend(&self.tokens);
        let request = &self.request;
        let output = self.num_tokens - self.prompt_len;
        let is_eos = !request.ignore_eos && request.eos_ids.contains(&token);
        if output >= request.min_tokens && (is_eos || request.stop_ids.contains(&token)) {
            return Some(Ending::Stopped);
        }
        (self.num_tokens >= max_model_len || output >= request.max_tokens).then_some(Ending::LengthCapped)
    }

    pub(crate) fn finish(mut self, reason: Ending) -> Finished {
        self.tokens.truncate(self.num_tokens as usize);
        Finished {
            seq: self.id,
            reason,
            tokens: self.tokens,
            prompt_len: self.prompt_len,
            cached_tokens: self.cached_tokens.unwrap_or(0),
            preemptions: self.preemptions,
        }
    }

    /// Order of service under the priority policy; the last is preempted first.
    pub(crate) const fn rank(&self) -> (i64, u64, SeqId) {
        (self.order.0, self.order.1, self.id)
    }
}
