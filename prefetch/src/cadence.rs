//! In which decode steps a sparse policy selects, loads and waits, and what is on the device when it starts.

use std::collections::BTreeMap;
use std::ops::Range;

use kvblock::{BlockHash, BlockIdx};

/// Prompt blocks that stay on the device when decoding turns sparse (GSA of UCM).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InitialResident {
    /// The first `init_blocks` blocks of the prompt and its last blocks, `topk_blocks` in all.
    pub remain: Vec<BlockIdx>,
    /// The blocks just before those last ones; their device blocks are the first to be overwritten.
    pub prefetch: Vec<BlockIdx>,
}

impl InitialResident {
    /// The initial residents of a prompt of `prompt_blocks` blocks. A prompt that fits stays complete.
    #[must_use]
    pub fn new(prompt_blocks: u32, topk_blocks: u32, init_blocks: u32, prefetch_blocks: u32) -> Self {
        let blocks = |range: Range<u32>| range.map(BlockIdx::new);
        if prompt_blocks <= topk_blocks {
            return Self { remain: blocks(0..prompt_blocks).collect(), prefetch: Vec::new() };
        }
        let init = init_blocks.min(topk_blocks);
        let tail = prompt_blocks - (topk_blocks - init);
        let first = tail.saturating_sub(prefetch_blocks).max(init);
        Self {
            remain: blocks(0..init).chain(blocks(tail..prompt_blocks)).collect(),
            prefetch: blocks(first..tail).collect(),
        }
    }
}

/// What retrieval does in a decode step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RetrievalAction {
    /// Restore the sink and local windows, score, load and wait, all in this step.
    Synchronous,
    /// Start scoring in the background.
    StartScoring,
    /// Take the scores and start loading the blocks that are new.
    StartLoading,
    /// Wait for the loads before attention.
    AwaitLoads,
    /// Nothing.
    Idle,
}

/// The retrieval cadence of ESA: scoring starts in step 2 of each stride and loading in step 0; step 1 waits
/// for the loads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RetrievalCadence {
    stride: u32,
}

impl RetrievalCadence {
    /// A cadence with a period of `stride` steps (ESA 5, KVStar 8), or `None` below 3, where the phases would
    /// collide.
    #[must_use]
    pub const fn new(stride: u32) -> Option<Self> {
        if stride < 3 { None } else { Some(Self { stride }) }
    }

    /// The action of decode step `step`, counted from 1.
    #[must_use]
    pub const fn action(self, step: u32) -> RetrievalAction {
        match step % self.stride {
            _ if step == 1 => RetrievalAction::Synchronous,
            0 => RetrievalAction::StartLoading,
            1 => RetrievalAction::AwaitLoads,
            2 => RetrievalAction::StartScoring,
            _ => RetrievalAction::Idle,
        }
    }
}

/// The blocks of `next` that `current` does not hold at the same position under the same hash: the delta to
/// load.
#[must_use]
pub fn delta_load(
    current: &BTreeMap<BlockIdx, BlockHash>,
    next: &BTreeMap<BlockIdx, BlockHash>,
) -> Vec<(BlockIdx, BlockHash)> {
    let differs = |(block, hash): &(&BlockIdx, &BlockHash)| current.get(block) != Some(hash);
    next.iter().filter(differs).map(|(&block, &hash)| (block, hash)).collect()
}
