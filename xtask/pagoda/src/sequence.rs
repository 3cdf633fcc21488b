//! One sequence through a model, without a scheduler: a prompt in chunks, then tokens, log-probabilities or
//! logits.

use std::collections::BTreeMap;
use std::ops::Range;

use kvblock::{
    BlockId, BlockTable, GroupBlock, HashChain, KvCache, KvCacheConfig, LengthLimits, SeqContent, SeqId,
    SlotRequest,
};
use models::batch::{Phase, Sample, Slice, StepOutput};
use models::kernel::sample::NOT_FINITE;
use models::sampling::Sampler;
use models::{Attended, Pipeline, Pooling};
use scheduler::AdmitError;

use crate::error::Error;
use crate::kv_used::{KvUsed, group_id};
use crate::options::EngineOptions;
use crate::tiers::{Filled, Tiers};
use crate::usage::{self, KvUse};

/// Id of the sequence in the block tables.
const SEQ: SeqId = SeqId::new(0);

/// A sequence that uses a decoder's KV cache alone and has all its blocks. The next sequence in the same decoder
/// overwrites the blocks.
#[derive(Debug)]
pub struct Sequence<'d> {
    decoder: &'d mut Pipeline,
    cache: KvCache,
    used: KvUsed,
    /// Maximum number of tokens per step.
    chunk: usize,
    tokens: Vec<u32>,
    /// Number of tokens whose KV is in the cache.
    computed: usize,
    /// Whether the last token was generated, so that it is computed as a decode step.
    generated: bool,
    /// Number of times a sparse policy attended to each block.
    access: Vec<u32>,
    /// Tiers that full blocks are saved to, and the hashes of the blocks of `tokens`.
    saving: Option<(&'d mut Tiers, HashChain)>,
}

/// Work of a step, and the results that it returns.
#[derive(Debug, Clone, Copy)]
pub struct StepWork<'s> {
    /// Phase of the step: prefill for given tokens, decode for a generated one. Sparse policies and kernels differ
    /// between the two.
    pub phase: Phase,
    /// Return the negative log likelihood of the token after each row, if that token is known.
    pub score: bool,
    /// Number of rows, at the end of the step, whose logits are returned.
    pub logits: usize,
    /// Number of rows, at the end of the step, whose final hidden states are summed and returned.
    pub pooled: usize,
    /// Draw the token after the last row.
    pub draw: Option<&'s Sampler>,
    /// Certify the attention mass that a sparse policy keeps, if it has a bound.
    pub certify: bool,
}

impl StepWork<'_> {
    /// A step that only computes keys and values.
    #[must_use]
    pub fn nothing(phase: Phase) -> Self {
        Self { phase, score: false, logits: 0, pooled: 0, draw: None, certify: false }
    }
}

impl<'d> Sequence<'d> {
    /// An empty sequence, computed in steps of up to `chunk` tokens, or as many as the decoder was loaded for.
    ///
    /// # Errors
    /// If the decoder's cache has no room for any sequence.
    pub fn new(decoder: &'d mut Pipeline, chunk: u32) -> Result<Self, Error> {
        let chunk = chunk.min(decoder.first().step_rows());
        let limits = LengthLimits::new(decoder.config().context_length).max_batched_tokens(chunk);
        let groups = decoder.plan().layout.groups.clone();
        let config = KvCacheConfig::new(decoder.num_blocks(), groups, limits).caching(false);
        Ok(Self {
            decoder,
            cache: KvCache::new(&config)?,
            used: KvUsed::new(&config),
            chunk: chunk as usize,
            tokens: Vec::new(),
            computed: 0,
            generated: false,
            access: Vec::new(),
            saving: None,
        })
    }

    /// Returns the maximum number of tokens of a step.
    #[must_use]
    pub fn chunk(&self) -> usize {
        self.chunk
    }

    /// Saves each block to `tiers` once it is full, for engines with the same `options`.
    ///
    /// # Panics
    /// If tokens have been appended already.
    #[must_use]
    pub fn saving_to(self, tiers: &'d mut Tiers, options: &EngineOptions) -> Self {
        assert!(self.tokens.is_empty(), "{} tokens have no hash", self.tokens.len());
        let chain = tiers.hash_chain(options);
        tiers.cancel(SEQ);
        Self { saving: Some((tiers, chain)), ..self }
    }

    /// Appends given tokens, which the next steps compute.
    pub fn extend(&mut self, ids: &[u32]) {
        self.append(ids);
        self.generated = false;
    }

    /// Appends a token that the caller has chosen from the logits.
    pub fn push(&mut self, id: u32) {
        self.append(&[id]);
        self.generated = true;
    }

    fn append(&mut self, ids: &[u32]) {
        self.tokens.extend(ids);
        if let Some((_, chain)) = &mut self.saving {
            chain.extend(&self.tokens);
        }
    }

    /// Computes the appended tokens, draws the next token and appends it.
    ///
    /// # Errors
    /// Those of [`step`](Self::step).
    pub fn next(&mut self, sampler: &mut Sampler) -> Result<u32, Error> {
        let output = self.advance(StepWork { draw: Some(sampler), ..StepWork::nothing(Phase::Prefill) })?;
        let id = output.sampled[0];
        sampler.push(id);
        self.push(id);
        Ok(id)
    }

    /// Computes the appended tokens, and returns the logits of the next token, `[vocab]`.
    ///
    /// # Errors
    /// Those of [`step`](Self::step).
    pub fn logits(&mut self) -> Result<Vec<f32>, Error> {
        Ok(self.advance(StepWork { logits: 1, ..StepWork::nothing(Phase::Prefill) })?.logits)
    }

    /// Appends and computes `ids`. Returns the natural logarithm of the probability of each, given all tokens before it; the
    /// first token of a sequence has none, because no token precedes it.
    ///
    /// # Errors
    /// Those of [`step`](Self::step).
    pub fn log_probs(&mut self, ids: &[u32]) -> Result<Vec<f32>, Error> {
        // The token before the first one must be in a step for its logits.
        self.computed = self.computed.min(self.tokens.len().saturating_sub(1));
        let known = self.tokens.len().saturating_sub(self.computed + 1);
        self.extend(ids);
        let mut log_probs = Vec::with_capacity(ids.len());
        while self.pending() > 0 {
            let ask = StepWork { score: true, ..StepWork::nothing(Phase::Prefill) };
            let output = self.step(self.pending().min(self.chunk), ask)?;
            log_probs.extend(output.nll.iter().map(|nll| -nll));
        }
        Ok(log_probs.split_off(known))
    }

    /// Appends `ids` and computes all pending tokens. Returns their embedding `[hidden]`: final hidden states, after the model's
    /// last norm, pooled to one vector that is not normalised.
    ///
    /// # Errors
    /// Those of [`step`](Self::step).
    pub fn embed(&mut self, ids: &[u32], pooling: Pooling) -> Result<Vec<f32>, Error> {
        self.extend(ids);
        let mut sum = vec![0.0; self.decoder.config().hidden_size as usize];
        let pending = self.pending();
        while self.pending() > 0 {
            let rows = self.pending().min(self.chunk);
            let pooled = match pooling {
                Pooling::Mean => rows,
                Pooling::Last => usize::from(rows == self.pending()),
            };
            let output = self.step(rows, StepWork { pooled, ..StepWork::nothing(Phase::Prefill) })?;
            sum.iter_mut().zip(&output.pooled).for_each(|(sum, of_step)| *sum += of_step);
        }
        let count = match pooling {
            Pooling::Mean => pending,
            Pooling::Last => 1,
        };
        #[expect(clippy::cast_precision_loss, reason = "a context is shorter than 2^24 tokens")]
        sum.iter_mut().for_each(|sum| *sum /= count as f32);
        Ok(sum)
    }

    /// Computes the next `rows` of the appended tokens.
    ///
    /// # Errors
    /// If nothing has been appended, a token is outside the vocabulary, the cache is too small, logits are not
    /// finite, or the device fails.
    pub fn step(&mut self, rows: usize, ask: StepWork<'_>) -> Result<StepOutput, Error> {
        if rows == 0 || rows > self.pending() {
            return Err(AdmitError::EmptyPrompt.into());
        }
        let (start, end) = (self.computed, self.computed + rows);
        let content = SeqContent::new(&self.tokens, &[]);
        let [first, count] = [start, rows].map(|n| u32::try_from(n).unwrap_or(u32::MAX));
        let tokens = self.tokens.len();
        self.cache
            .allocate_slots(SlotRequest::new(SEQ, content, first, count))
            .map_err(|source| Error::Alloc { end, tokens, source })?;
        self.used.look(&self.cache);
        let table = |group| self.cache.table(SEQ, group_id(group)).map_or(&[][..], BlockTable::blocks);
        let tables: Vec<&[BlockId]> = (0..self.cache.num_groups()).map(table).collect();
        let targets = if ask.score { start + 1..(end + 1).min(tokens) } else { 0..0 };
        let slice = Slice {
            tokens: &self.tokens[start..end],
            first,
            tables: &tables,
            phase: ask.phase,
            access: &self.access,
            targets: &self.tokens[targets],
            log_probs: None,
            logits: ask.logits,
            pooled: ask.pooled,
            certify: ask.certify,
        };
        let samples: Vec<Sample<'_>> = ask.draw.iter().map(|s| s.sample(0, first + count, None)).collect();
        let mut output = self.decoder.step(&[slice], &samples)?;
        if let Some((_, lost)) = output.lost.pop() {
            return Err(models::ModelError::from(lost).into());
        }
        if !is_finite(&output) {
            return Err(self.discard(end));
        }
        self.computed = end;
        count_accesses(&mut self.access, &output.attended);
        self.save(first..first + count, ask.phase)?;
        Ok(output)
    }

    /// Saves the blocks that the tokens at these positions filled, in a step of `phase`.
    fn save(&mut self, positions: Range<u32>, phase: Phase) -> Result<(), Error> {
        let Some((tiers, chain)) = &mut self.saving else { return Ok(()) };
        let origin = tiers.computed(SEQ, phase);
        let id = |GroupBlock { group, index }: GroupBlock| {
            self.cache.table(SEQ, group).and_then(|table| table.blocks().get(index as usize).copied())
        };
        let filled = tiers.filled(positions, chain.hashes());
        let blocks = filled
            .filter_map(|(block, hash)| Some(Filled { group: block.group, hash, id: id(block)?, origin }));
        let blocks: Vec<_> = blocks.collect();
        Ok(tiers.save(self.decoder, &blocks)?)
    }

    /// Takes the blocks of a sequence with logits that are not finite out of the tiers.
    fn discard(&mut self, tokens: usize) -> Error {
        let Some((tiers, chain)) = &mut self.saving else { return Error::NonFinite { tokens } };
        let forgotten = tiers.forget(chain.hashes());
        forgotten.map_or_else(Error::from, |()| Error::NonFinite { tokens })
    }

    /// Waits until all blocks are saved or have failed.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn finish(self) -> Result<(), Error> {
        match self.saving {
            Some((tiers, _)) => Ok(tiers.settle()?),
            None => Ok(()),
        }
    }

    /// Computes all pending tokens. The last of them has the outputs that `ask` requests.
    fn advance(&mut self, ask: StepWork<'_>) -> Result<StepOutput, Error> {
        let decoded = usize::from(self.generated);
        while self.pending() > decoded {
            let rows = (self.pending() - decoded).min(self.chunk);
            let last = rows == self.pending();
            let output = self.step(rows, if last { ask } else { StepWork::nothing(Phase::Prefill) })?;
            if last {
                return Ok(output);
            }
        }
        self.step(decoded, StepWork { phase: Phase::Decode, ..ask })
    }

    /// Number of appended tokens that are not computed.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.tokens.len() - self.computed
    }

    /// All tokens of the sequence.
    #[must_use]
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The decoder, read-only.
    #[must_use]
    pub fn decoder(&self) -> &Pipeline {
        self.decoder
    }

    /// Largest number of KV blocks in use at one time, and their bytes, by cache group.
    #[must_use]
    pub fn kv_use(&self) -> BTreeMap<String, KvUse> {
        usage::kv_use(self.decoder.plan(), &self.used.most)
    }
}

/// Whether all outputs that a step computed from its logits are finite.
fn is_finite(output: &StepOutput) -> bool {
    let floats = || output.nll.iter().chain(&output.logits).chain(&output.pooled);
    !output.sampled.contains(&NOT_FINITE) && floats().all(|value| value.is_finite())
}

/// Counts the blocks that a slice attended to under a sparse policy.
fn count_accesses(access: &mut Vec<u32>, attended: &[Option<Attended>]) {
    for block in attended.iter().flatten().flat_map(|attended| &attended.accessed) {
        let block = block.get() as usize;
        access.resize(access.len().max(block + 1), 0);
        access[block] += 1;
    }
}
