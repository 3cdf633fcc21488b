//! A closer look at a running engine, for people who watch it: who holds which KV blocks, which of them attention
//! reads, and which sequences ended a moment ago.
//!
//! Everything is made on request and bounded, so that an engine without watchers does nothing for it.

mod block_map;
mod block_reads;

use std::time::Instant;

use kvblock::SeqId;
use serde::Serialize;

use crate::event::{CachedTokens, FinishReason, Usage};
use crate::snapshot::{Snapshot, id};

pub(crate) use block_map::Owners;
pub use block_map::{BlockMap, CellKind, CellRun};
pub(crate) use block_reads::ReadStep;
pub use block_reads::{BlockReads, LayerReads};

/// Maximum number of cells of a [`BlockMap`].
pub const MAX_CELLS: u32 = 2048;

/// Maximum number of columns of [`LayerReads`].
pub const MAX_COLUMNS: u32 = 128;

/// Maximum number of sequences that are watched at a time; further ones are not watched.
pub const MAX_WATCHED: usize = 4;

/// Number of ended sequences that an engine remembers.
pub(crate) const MAX_ENDED: usize = 64;

/// A detailed view of an engine at one moment.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct LiveView {
    /// The part of the state that is known at any time.
    pub snapshot: Snapshot,
    /// SPEC of the sparse-attention policy, `indexer` for the model's own selection, or `full` for dense attention.
    pub policy: String,
    /// KV blocks of the pool.
    pub map: BlockMap,
    /// Blocks that each watched sequence read in its last traced step.
    pub reads: Vec<BlockReads>,
    /// The last sequences that ended, the latest last.
    pub ended: Vec<EndedView>,
}

/// A sequence that has ended.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct EndedView {
    /// Id of the sequence.
    #[serde(serialize_with = "id")]
    pub seq: SeqId,
    /// Index of the sample in its request.
    pub sample: u32,
    /// Reason why the sequence ended.
    pub reason: FinishReason,
    /// Number of tokens of the prompt.
    pub prompt_tokens: u32,
    /// Leading prompt tokens that were not computed.
    pub cached: CachedTokens,
    /// Number of generated tokens.
    pub generated_tokens: u32,
    /// Number of times that it lost its KV blocks and was resumed.
    pub preemptions: u32,
    /// Fraction of the KV blocks that the sequence attended to, 0 to 1.
    pub density: f64,
    /// Fraction of the attention mass that the sparse policy is certified to keep, 0 to 1; `None` without a
    /// certificate.
    pub bound: Option<f64>,
    /// Seconds from its submission to its first schedule.
    pub started_s: Option<f64>,
    /// Seconds from its submission to its first token.
    pub first_s: Option<f64>,
    /// Seconds from its submission to its end.
    pub ended_s: f64,
    /// Seconds from the end of the sequence to this view.
    pub ago_s: f64,
}

/// A sequence that has ended, as the engine keeps it for the view.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) seq: SeqId,
    pub(crate) sample: u32,
    pub(crate) reason: FinishReason,
    pub(crate) usage: Usage,
    pub(crate) at: Instant,
}

impl Ended {
    pub(crate) fn view(&self, now: Instant) -> EndedView {
        let Self { seq, sample, ref reason, ref usage, at } = *self;
        let since = |time: Instant| time.saturating_duration_since(usage.clock.submitted).as_secs_f64();
        EndedView {
            seq,
            sample,
            reason: reason.clone(),
            prompt_tokens: usage.prompt_tokens,
            cached: usage.cached,
            generated_tokens: usage.generated_tokens,
            preemptions: usage.preemptions,
            density: usage.sparse.density,
            bound: usage.sparse.bound,
            started_s: usage.clock.started.map(since),
            first_s: usage.clock.first.map(since),
            ended_s: since(at),
            ago_s: now.saturating_duration_since(at).as_secs_f64(),
        }
    }
}
