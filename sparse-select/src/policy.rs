//! The trait that every selection policy implements, and what it is given.

use core::fmt;

use kvblock::BlockSize;

use crate::{
    Heads, SelectError, Selection, digest::DigestFormat, selection::count_u32, xattn::Antidiagonals,
};

pub mod esa;
pub mod full;
pub mod gsa;
pub mod gsa_ucm;
pub mod kvcomp;
pub mod minference;
pub mod quest;
mod ranking;
pub mod streaming;
pub mod vertical_slash;

pub use ranking::{ByCompressed, ByDigests, ByHashes, DigestKind, Ranking};

/// Chooses the KV blocks that the queries of one layer attend to.
///
/// A policy is a pure function of its parameters and the [`Input`]: what changes from step to step (access history,
/// cadence, cached digests) is a value of the caller's. The same object serves every request and layer at once.
pub trait Policy: fmt::Debug + Send + Sync {
    /// Name as in a spec text.
    fn name(&self) -> &'static str;

    /// Where the policy can be used.
    fn support(&self) -> Support;

    /// Tokens of the blocks it selects among.
    fn block_size(&self) -> BlockSize;

    /// Whether every block is kept in a layer (`None`: in any) for histories of `kv_len` tokens, whatever the tensors: an
    /// engine then need not ask.
    fn keeps_all(&self, layer: Option<u32>, kv_len: usize) -> bool {
        let _ = layer;
        kv_len < self.support().dense_below_tokens
    }

    /// Whether a decode step keeps every block, by the policy's definition.
    fn keeps_all_in_decode(&self) -> bool {
        false
    }

    /// Whether its digests also bound the attention mass of what it drops, so that [`certificate`](crate::certificate)
    /// says what a selection is worth without reading dropped keys.
    fn certifies(&self) -> bool {
        false
    }

    /// How kernels rank the blocks of a decode step, for policies that rank by digests, hashes or compressed keys; they
    /// then take the best [`budget`](Self::budget) blocks.
    fn ranking(&self) -> Option<Ranking> {
        None
    }

    /// Whether a layer takes the selection of the nearest layer before it that selects, and selects itself only where there
    /// is none.
    fn reuses(&self, layer: u32) -> bool {
        let _ = layer;
        false
    }

    /// Blocks of a decode step over `kv_len` tokens in a layer, forced ones included, where there is a
    /// [`ranking`](Self::ranking).
    fn budget(&self, layer: Option<u32>, kv_len: usize) -> u32 {
        let _ = layer;
        num_blocks(kv_len, self.block_size())
    }

    /// Attention mass that a decode step makes certain, below 1, where that and no budget decides how many blocks are kept.
    fn mass(&self) -> Option<f64> {
        None
    }

    /// How kernels find the blocks of a chunk of a prompt, for policies that estimate masses from antidiagonals.
    fn antidiagonals(&self) -> Option<Antidiagonals> {
        None
    }

    /// Share of the blocks in sight that query heads keep, each for itself, before they share lists or vote; `None` where
    /// nothing is agreed on.
    ///
    /// # Errors
    /// As [`select_into`](Self::select_into).
    fn head_density(&self, input: &Input<'_>) -> Result<Option<f64>, SelectError> {
        let _ = input;
        Ok(None)
    }

    /// Replaces `out` by the blocks chosen for `input`. Equal scores go to the lower index.
    ///
    /// # Errors
    /// When the input lacks what the policy scores with, or shapes do not fit each other.
    fn select_into(&self, input: &Input<'_>, out: &mut Selection) -> Result<(), SelectError>;
}

/// Where a policy can be used and what it must be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Support {
    /// Selects for a chunk of queries.
    pub prefill: bool,
    /// Selects for a single query.
    pub decode: bool,
    /// Reads the queries and the cached keys.
    pub query: bool,
    /// Its queries come after every cached key (an offloaded history without the chunk itself), so nothing is masked.
    pub after_history: bool,
    /// Decides for each query by itself. A chunk of a prompt is then as many decisions as it has queries, none of which
    /// tiles can share: engines leave prefills dense.
    pub each_query: bool,
    /// Selects every block while the history has fewer tokens.
    pub dense_below_tokens: usize,
}

impl Support {
    /// Of policies that look at positions and earlier accesses.
    pub const OF_POSITIONS: Self = Self {
        prefill: true,
        decode: true,
        query: false,
        after_history: false,
        each_query: false,
        dense_below_tokens: 0,
    };

    /// Of policies that decide by each query.
    pub const OF_EACH_QUERY: Self = Self { query: true, each_query: true, ..Self::OF_POSITIONS };
}

/// Which part of generation a selection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// A chunk of the prompt. `chunk_idx` is the index, in blocks, at which the chunk starts where the cached blocks
    /// are all earlier than the chunk; policies that look at positions end there.
    Prefill {
        /// Blocks before the chunk.
        chunk_idx: u32,
    },
    /// One token a step.
    Decode,
}

/// What a policy may look at: one sequence in one layer.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    /// Cached tokens, those of the queries included.
    pub kv_len: usize,
    /// Prefill chunk or decode step.
    pub stage: Stage,
    /// Layer index, where layers are treated differently (dense first layers).
    pub layer: Option<u32>,
    /// Queries `[heads, q_len, head_dim]`. They sit at the last `q_len` of the `kv_len` positions.
    pub q: Option<Heads<'a>>,
    /// Cached keys `[kv_heads, kv_len, head_dim]`.
    pub k: Option<Heads<'a>>,
    /// Earlier accesses of each block by this request; missing entries count as 0.
    pub access: &'a [u32],
    /// Indexer head gates `[q_len, heads]`; all 1 where absent.
    pub gates: Option<&'a [f32]>,
    /// How digests of keys are kept, for policies that score with them.
    pub digests: DigestFormat,
}

impl<'a> Input<'a> {
    /// A decode step known by its length alone, as a scheduler knows it.
    #[must_use]
    pub const fn positions(kv_len: usize) -> Self {
        Self {
            kv_len,
            stage: Stage::Decode,
            layer: None,
            q: None,
            k: None,
            access: &[],
            gates: None,
            digests: DigestFormat::F32,
        }
    }

    /// A decode step with its query (or queries, one step each) and all cached keys.
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
    /// When one is missing, their shapes do not fit, or there are more queries than positions.
    pub fn scored(&self, policy: &'static str) -> Result<(Heads<'a>, Heads<'a>, usize), SelectError> {
        let (q, k, group) = self.scored_unmasked(policy)?;
        if q.len() > k.len() {
            return Err(SelectError::QueryBeyondHistory { q_len: q.len(), kv_len: k.len() });
        }
        Ok((q, k, group))
    }

    /// [`scored`](Self::scored) where the keys are a history without the queries' own, which may then be longer.
    ///
    /// # Errors
    /// When one is missing or their shapes do not fit.
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

    /// Blocks of the history, the last one perhaps partial.
    #[must_use]
    pub fn num_blocks(&self, block_size: BlockSize) -> u32 {
        num_blocks(self.kv_len, block_size)
    }
}

/// Blocks that `tokens` tokens fill, the last one perhaps in part.
#[must_use]
pub fn num_blocks(tokens: usize, block_size: BlockSize) -> u32 {
    block_size.blocks_for(count_u32(tokens))
}

/// The tokens of a block: `block * block_size .. min((block + 1) * block_size, kv_len)`.
#[must_use]
pub fn block_tokens(block: u32, block_size: BlockSize, kv_len: usize) -> core::ops::Range<usize> {
    let first = block as usize * block_size.get() as usize;
    first..kv_len.min(first + block_size.get() as usize)
}

/// One query of a chunk as the decode step it stands for.
pub(crate) struct Step<'a> {
    /// Query `[heads, 1, head_dim]`.
    pub(crate) q: Heads<'a>,
    /// Keys up to the query's own position.
    pub(crate) k: Heads<'a>,
    /// Blocks those keys fill.
    pub(crate) num_blocks: u32,
}

/// Runs a decode policy on every query: query i of a chunk is the decode step at its own position, so a row of the
/// result does not depend on how the queries were cut into chunks. `row` returns one ascending list for each group.
pub(crate) fn select_each_query(
    q: Heads<'_>,
    k: Heads<'_>,
    block_size: BlockSize,
    groups: usize,
    out: &mut Selection,
    mut row: impl FnMut(&Step<'_>) -> Result<Vec<Vec<u32>>, SelectError>,
) -> Result<(), SelectError> {
    let first = k.len() - q.len();
    let mut rows = Vec::with_capacity(q.len());
    let visible = (0..q.len()).map(|t| num_blocks(first + t + 1, block_size));
    out.begin_causal(num_blocks(k.len(), block_size), groups, visible);
    for t in 0..q.len() {
        let step = Step { q: q.window(t, 1), k: k.window(0, first + t + 1), num_blocks: out.visible(t) };
        rows.push(row(&step)?);
    }
    for group in 0..groups {
        for row in &rows {
            out.push_row(row[group].iter().copied());
        }
    }
    Ok(())
}
