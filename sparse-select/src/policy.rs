//! The trait that every selection policy implements, and its input.

use core::fmt;
use std::sync::Arc;

use kvblock::{BlockSize, Phase};

use crate::{Heads, SelectError, Selection, digest::DigestFormat, xattn::Antidiagonals};

mod deployment;
mod each_query;
pub mod esa;
pub mod flashprefill;
pub mod full;
pub mod gsa;
pub mod gsa_ucm;
pub mod kvcomp;
pub mod minference;
pub mod quest;
mod ranking;
pub mod skip_softmax;
pub mod streaming;
pub mod vertical_slash;

pub use crate::blocks::{block_tokens, num_blocks};
pub use deployment::{Deployment, PrefetchSettings};
pub use each_query::Retrieved;
pub(crate) use each_query::{QueryStep, retrieve, select_each_query};
pub use flashprefill::Energies;
pub use ranking::{ByCompressed, ByDigests, ByHashes, DigestKind, Ranking};

/// Chooses the KV blocks that the queries of one layer attend to.
///
/// A policy is a pure function of its parameters and the [`Input`]: whatever changes from step to step
/// (access history, cadence, cached digests) is kept by the caller. One object serves all requests and layers
/// concurrently.
pub trait Policy: fmt::Debug + Send + Sync {
    /// Name, as in a spec.
    fn name(&self) -> &'static str;

    /// Returns the phases and layouts that the policy can be used with.
    fn support(&self) -> Support;

    /// Tokens per block.
    fn block_size(&self) -> BlockSize;

    /// Whether every block of a history of `kv_len` tokens is kept in a layer (`None`: in any layer),
    /// whatever the tensors, so that an engine need not run the policy.
    fn keeps_all(&self, layer: Option<u32>, kv_len: usize) -> bool {
        let _ = layer;
        kv_len < self.support().dense_below_tokens
    }

    /// Number of tokens below which no block is dropped, because the policy does not act there or its budget holds all
    /// blocks. An engine that runs the policy there gets lists of all blocks.
    fn whole_below(&self) -> usize {
        self.support().dense_below_tokens
    }

    /// Returns the length of the shortest history in which blocks are selected, or the way in which an engine finds
    /// this length.
    fn min_tokens(&self) -> MinTokens {
        MinTokens::Auto
    }

    /// Returns the queries by which an engine selects blocks in decode.
    fn select_by(&self) -> SelectBy {
        SelectBy::Current
    }

    /// Number of decoding sequences of a step below which an engine attends to everything in all of them.
    fn min_requests(&self) -> u32 {
        1
    }

    /// Number of steps from one selection by queries to the next of a decoding sequence, at least 1. A step in
    /// between keeps what the last selection [retrieved](Retrieved), and adds the blocks that have begun since.
    fn retrieval_stride(&self) -> u32 {
        1
    }

    /// Whether the policy by definition keeps every block in decode steps.
    fn keeps_all_in_decode(&self) -> bool {
        false
    }

    /// Whether the policy selects for queries of a phase. If not, they attend to everything.
    fn acts_on(&self, phase: Phase) -> bool {
        let support = self.support();
        match phase {
            Phase::Decode => support.decode && !self.keeps_all_in_decode(),
            Phase::Prefill => support.prefill && (!support.each_query || self.skips().is_some()),
        }
    }

    /// Returns the policies of prefill and of decode, if they are [two](crate::Phases).
    fn phases(&self) -> Option<[Arc<dyn Policy>; 2]> {
        None
    }

    /// Whether the policy's digests also bound the attention mass of dropped blocks, so that a
    /// [`certificate`](crate::certificate) needs no dropped keys.
    fn certifies(&self) -> bool {
        false
    }

    /// Returns the ranking of blocks by kernels in a decode step, for policies that rank by digests, hashes or compressed
    /// keys; the best [`budget`](Self::budget) blocks are then selected.
    fn ranking(&self) -> Option<Ranking> {
        None
    }

    /// Whether a layer reuses the selection of the nearest earlier layer that selects; it selects by itself
    /// only if there is none.
    fn reuses(&self, layer: u32) -> bool {
        let _ = layer;
        false
    }

    /// Number of blocks that a decode step over `kv_len` tokens selects in a layer, forced ones included, for
    /// policies with a [`ranking`](Self::ranking).
    fn budget(&self, layer: Option<u32>, kv_len: usize) -> u32 {
        let _ = layer;
        num_blocks(kv_len, self.block_size())
    }

    /// Attention mass below 1 that a decode step certifies, for policies where the mass, not a budget,
    /// decides how many blocks are kept.
    fn mass(&self) -> Option<f64> {
        None
    }

    /// Returns the parameters with which kernels select the blocks of a prefill chunk, for policies that estimate
    /// mass from antidiagonals.
    fn antidiagonals(&self) -> Option<Antidiagonals> {
        None
    }

    /// Returns the parameters with which kernels select the blocks of a prefill chunk, for policies that compare
    /// energies of mean keys.
    fn energies(&self) -> Option<Energies> {
        None
    }

    /// Returns the threshold of skip-softmax, for policies that leave keys out inside the attention kernel: of a
    /// query with n keys, prefill leaves out keys whose weight is below `threshold / n` of the largest so far. See
    /// [`skip_softmax`].
    fn skips(&self) -> Option<u32> {
        None
    }

    /// Returns the settings of the engine that the published parameters of the policy fix, if any.
    fn deployment(&self) -> Deployment {
        Deployment::default()
    }

    /// Fraction of the visible blocks that each query head keeps on its own, averaged, before heads share
    /// lists or vote; `None` for policies that select per head or group from the start.
    ///
    /// # Errors
    /// As [`select_into`](Self::select_into).
    fn head_density(&self, input: &Input<'_>) -> Result<Option<f64>, SelectError> {
        let _ = input;
        Ok(None)
    }

    /// Replaces `out` with the blocks selected for `input`. Ties go to the lower index.
    ///
    /// # Errors
    /// When the input lacks what the policy scores with, or the shapes do not match.
    fn select_into(&self, input: &Input<'_>, out: &mut Selection) -> Result<(), SelectError>;
}

/// Queries by which the blocks of a decode row are selected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum SelectBy {
    /// The row's own queries: selection waits for them, and attention for the selection.
    #[default]
    Current,
    /// The queries of the sequence's previous token, which are similar to the row's own: an engine selects in all layers at
    /// once when a step begins. A sequence without a token in the last step attends to everything.
    Previous,
}

/// Length of the shortest history in which blocks are selected: the key `min_tokens` of every policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MinTokens {
    /// Engines on GPUs time their steps, and attend densely if selecting is slower; on software drivers they attend
    /// densely in chunks shorter than a query block.
    #[default]
    Auto,
    /// Engines on all devices, software drivers included, time their steps and attend densely if selecting is slower.
    Measured,
    /// A fixed number of tokens, even if selecting is slower than dense attention.
    Tokens(u32),
}

impl MinTokens {
    /// Returns the number of tokens of [`Self::Tokens`], and 0 for the other variants.
    #[must_use]
    pub const fn given(self) -> usize {
        match self {
            Self::Auto | Self::Measured => 0,
            Self::Tokens(tokens) => tokens as usize,
        }
    }
}

/// Phases and layouts that a policy can be used with, and its needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Support {
    /// Whether the policy supports prefill chunks.
    pub prefill: bool,
    /// Whether the policy supports decode steps.
    pub decode: bool,
    /// Whether the policy needs the queries and the cached keys.
    pub query: bool,
    /// Whether all keys come before the queries (an offloaded history without the chunk itself), so that nothing is
    /// masked.
    pub after_history: bool,
    /// Whether the policy selects for each query separately. The queries of a prefill chunk then share no tiles, so
    /// engines leave prefill dense.
    pub each_query: bool,
    /// Number of tokens below which every block of a history is selected.
    pub dense_below_tokens: usize,
}

impl Support {
    /// Support of policies that use only positions and earlier accesses.
    pub const POSITIONS_ONLY: Self = Self {
        prefill: true,
        decode: true,
        query: false,
        after_history: false,
        each_query: false,
        dense_below_tokens: 0,
    };

    /// Support of policies that select for each query.
    pub const PER_QUERY: Self = Self { query: true, each_query: true, ..Self::POSITIONS_ONLY };
}

/// Part of generation that a selection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// A chunk of the prompt. `chunk_idx` is the block at which the chunk starts; policies that use positions
    /// select among the blocks before it.
    Prefill {
        /// Number of blocks before the chunk.
        chunk_idx: u32,
    },
    /// One token per step.
    Decode,
}

impl Stage {
    /// The phase of the queries.
    #[must_use]
    pub const fn phase(self) -> Phase {
        match self {
            Self::Prefill { .. } => Phase::Prefill,
            Self::Decode => Phase::Decode,
        }
    }
}

/// Input of a policy: one sequence in one layer.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    /// Number of cached tokens, including the queries.
    pub kv_len: usize,
    /// Prefill chunk or decode step.
    pub stage: Stage,
    /// Layer index, if layers are to be treated differently (dense first layers).
    pub layer: Option<u32>,
    /// Queries `[heads, q_len, head_dim]`. They sit at the last `q_len` of the `kv_len` positions.
    pub q: Option<Heads<'a>>,
    /// Cached keys `[kv_heads, kv_len, head_dim]`.
    pub k: Option<Heads<'a>>,
    /// Number of earlier accesses to each block by this request; missing entries count as 0.
    pub access: &'a [u32],
    /// Selection of the last retrieval of the request in this layer, for policies with a
    /// [stride](Policy::retrieval_stride).
    pub retrieved: Option<Retrieved<'a>>,
    /// Indexer head gates `[q_len, heads]`; all 1 if absent.
    pub gates: Option<&'a [f32]>,
    /// Format of digests of keys, for policies that score with them.
    pub digests: DigestFormat,
}

impl<'a> Input<'a> {
    /// A decode step known only by its length, as on a scheduler.
    #[must_use]
    pub const fn positions(kv_len: usize) -> Self {
        Self {
            kv_len,
            stage: Stage::Decode,
            layer: None,
            q: None,
            k: None,
            access: &[],
            retrieved: None,
            gates: None,
            digests: DigestFormat::F32,
        }
    }

    /// A decode step with its query (or several queries, one step each) and all cached keys.
    #[must_use]
    pub const fn decode(q: Heads<'a>, k: Heads<'a>) -> Self {
        Self { q: Some(q), k: Some(k), ..Self::positions(k.len()) }
    }

    /// A prefill chunk: queries and the keys they may see.
    #[must_use]
    pub const fn prefill(q: Heads<'a>, k: Heads<'a>, chunk_idx: u32) -> Self {
        Self { stage: Stage::Prefill { chunk_idx }, ..Self::decode(q, k) }
    }

    /// Queries and keys with the GQA group size, for policies that score.
    ///
    /// # Errors
    /// When one is missing, their shapes do not match, or there are more queries than positions.
    pub fn scored(&self, policy: &'static str) -> Result<(Heads<'a>, Heads<'a>, usize), SelectError> {
        let (q, k, group) = self.scored_unmasked(policy)?;
        if q.len() > k.len() {
            return Err(SelectError::QueryBeyondHistory { q_len: q.len(), kv_len: k.len() });
        }
        Ok((q, k, group))
    }

    /// [`scored`](Self::scored) for keys of a history without the chunk, so that there may be more queries than keys.
    ///
    /// # Errors
    /// When one is missing or their shapes do not match.
    pub fn scored_unmasked(
        &self,
        policy: &'static str,
    ) -> Result<(Heads<'a>, Heads<'a>, usize), SelectError> {
        let q = self.q.ok_or(SelectError::MissingQuery { policy })?;
        let k = self.k.ok_or(SelectError::MissingKeys { policy })?;
        let group = crate::heads::gqa_group(&q, &k)?;
        if k.len() != self.kv_len {
            return Err(SelectError::Count { tensor: "k", needed: self.kv_len, actual: k.len() });
        }
        Ok((q, k, group))
    }

    /// Number of blocks of the history; the last one may be partial.
    #[must_use]
    pub fn num_blocks(&self, block_size: BlockSize) -> u32 {
        num_blocks(self.kv_len, block_size)
    }
}

/// Number of tokens that no sequence has.
const NEVER: usize = u32::MAX as usize;

/// Returns the number of tokens below which a policy that keeps `kept(n)` of `n` blocks keeps every block. A policy
/// that drops blocks of some number must drop some of all larger numbers.
pub(crate) fn whole_below(block_size: BlockSize, kept: impl Fn(u32) -> u32) -> usize {
    match least_that_drops(kept) {
        Some(blocks) => ((blocks as usize - 1) * block_size.get() as usize + 1).min(NEVER),
        None => NEVER,
    }
}

/// Returns the smallest number of blocks `n` with `kept(n) < n`, for a policy that also drops blocks of all larger
/// numbers.
pub(crate) fn least_that_drops(kept: impl Fn(u32) -> u32) -> Option<u32> {
    let (mut least, mut end) = (1, u32::MAX);
    while least < end {
        let middle = least + (end - least) / 2;
        (least, end) = if kept(middle) < middle { (least, middle) } else { (middle + 1, end) };
    }
    (least < u32::MAX).then_some(least)
}
