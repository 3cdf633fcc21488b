//! Scores of the blocks of decode rows by kernels, from summaries of blocks: digests, hashes or compressed keys.

mod compressed;
mod context;
mod digests;
mod due_blocks;
mod hashes;

use attn_kernels::gpu::{Buf, Gpu, Pass};
use sparse_select::{Policy, Ranking};

use super::SelectingRows;
use crate::Reach;
use crate::batch::Slice;
use crate::cast::u32_of;
use crate::decoder::attention_groups::AttentionGroup;
use crate::decoder::kernels::LoadContext;
use crate::{DecoderConfig, KvPool, ModelError};
use compressed::CompressedScorer;
use digests::DigestScorer;
use due_blocks::DueBlocks;
use hashes::HashScorer;

pub(super) use context::RankContext;

/// Scorer of blocks, and the blocks whose summaries are due.
#[derive(Debug)]
pub(super) struct Scorer {
    kind: ScorerKind,
    due_blocks: DueBlocks,
}

#[derive(Debug)]
enum ScorerKind {
    Digests(DigestScorer),
    Hashes(Box<HashScorer>),
    Compressed(CompressedScorer),
}

impl Scorer {
    /// Creates the scorer; `None` if the policy does not rank by summaries, or kernels do not support its sizes. Only
    /// layers that `selects` names are scored; `at_once` says that all of them are scored before the first layer
    /// runs.
    pub(super) fn new(
        load: &LoadContext<'_>,
        policy: &dyn Policy,
        selects: &[bool],
        at_once: bool,
    ) -> Result<Option<Self>, ModelError> {
        let block = policy.block_size().get();
        let waits = load.kv.page_slots() == 0;
        let (kind, due_blocks) = match policy.ranking() {
            None => return Ok(None),
            Some(Ranking::Digests(by)) => (
                ScorerKind::Digests(DigestScorer::new(load, by, policy, selects)?),
                DueBlocks::new(block, false, waits),
            ),
            Some(Ranking::Hashes(by)) => {
                let hashes = HashScorer::new(load, by, block, selects, at_once)?;
                (ScorerKind::Hashes(Box::new(hashes)), DueBlocks::new(block, false, waits))
            }
            Some(Ranking::Compressed(by)) => {
                let Some(compressed) = CompressedScorer::new(load, by, block, selects)? else {
                    return Ok(None);
                };
                // The softmax goes over every compressed key, those of the last blocks too.
                (ScorerKind::Compressed(compressed), DueBlocks::new(by.kernel_stride, true, waits))
            }
        };
        Ok(Some(Self { kind, due_blocks }))
    }

    /// Whether a step of single tokens summarises only blocks that were complete before it.
    pub(super) fn completes_before(&self) -> bool {
        self.due_blocks.completes_before()
    }

    /// Marks the summaries of blocks as stale, as the blocks are about to be written.
    pub(super) fn forget(&mut self, blocks: impl Iterator<Item = u32>) {
        self.due_blocks.forget(blocks);
    }

    /// Plans which blocks a step summarises; `selects` says whether a row of the step selects. Returns whether all these
    /// blocks were complete before the step.
    pub(super) fn touch(
        &mut self,
        gpu: &Gpu,
        kv: &KvPool,
        attn_groups: &[AttentionGroup],
        slices: &[Slice<'_>],
        selects: bool,
    ) -> Result<bool, ModelError> {
        let summarises = self.due_blocks.summarises(slices, selects);
        let due = match summarises {
            true => self.due_blocks.due(kv.shape(), attn_groups, slices),
            false => {
                self.due_blocks.put_off(kv.shape(), attn_groups, slices);
                vec![Vec::new(); attn_groups.len()]
            }
        };
        for (index, (attn_group, due_blocks)) in attn_groups.iter().zip(&due).enumerate() {
            let listed = summarises && attn_group.reach == Reach::Full;
            let list_len =
                if listed { self.due_blocks.list_len(kv.shape(), slices, due_blocks.len()) } else { 0 };
            match &mut self.kind {
                ScorerKind::Digests(digests) => digests.pools.touch(gpu, index, due_blocks, list_len)?,
                ScorerKind::Hashes(hashes) => hashes.touch(gpu, index, due_blocks, list_len)?,
                ScorerKind::Compressed(compressed) => {
                    compressed.pools.touch(gpu, index, due_blocks, list_len)?
                }
            }
        }
        Ok(self.due_blocks.before_keys(slices))
    }

    /// Adds the numbers that the step's commands depend on.
    pub(super) fn shape(&self, shape: &mut Vec<usize>) {
        match &self.kind {
            ScorerKind::Digests(digests) => digests.shape(shape),
            ScorerKind::Hashes(hashes) => hashes.shape(shape),
            ScorerKind::Compressed(compressed) => compressed.shape(shape),
        }
    }

    /// Plans the scores of a step's decode rows; `bounds` requests bounds of the blocks' attention mass too.
    pub(super) fn begin(
        &mut self,
        gpu: &Gpu,
        config: &DecoderConfig,
        selecting: &[SelectingRows],
        score_stride: u32,
        bounds: bool,
    ) -> Result<(), ModelError> {
        let longest = selecting.iter().map(SelectingRows::kv_len).max().unwrap_or(0);
        match &mut self.kind {
            ScorerKind::Digests(digests) => digests.begin(gpu, config, selecting.len(), score_stride, bounds),
            ScorerKind::Hashes(hashes) => hashes.begin(gpu, selecting, score_stride),
            ScorerKind::Compressed(compressed) => {
                compressed.begin(gpu, config, selecting.len(), u32_of(longest), score_stride)
            }
        }
    }

    /// Records the layer's summaries of the blocks that are due.
    pub(super) fn summarise(&self, pass: &mut Pass, context: &RankContext<'_>) {
        match &self.kind {
            ScorerKind::Digests(digests) => digests.pools.summarise(pass, context),
            ScorerKind::Hashes(hashes) => hashes.summarise(pass, context),
            ScorerKind::Compressed(compressed) => compressed.pools.summarise(pass, context),
        }
    }

    /// Records the hashes of queries, for policies that rank by hashes.
    pub(super) fn prepare(&self, pass: &mut Pass, context: &RankContext<'_>) {
        match &self.kind {
            ScorerKind::Hashes(hashes) => hashes.prepare(pass, context),
            ScorerKind::Digests(_) | ScorerKind::Compressed(_) => {}
        }
    }

    /// Records the scores of all blocks, `[rows, sets, score_stride]`, with one set for all heads or one per KV head.
    pub(super) fn score(&self, pass: &mut Pass, context: &RankContext<'_>, scores: &Buf<f32>) {
        match &self.kind {
            ScorerKind::Digests(digests) => digests.score(pass, context, scores),
            ScorerKind::Hashes(hashes) => hashes.score(pass, context, scores),
            ScorerKind::Compressed(compressed) => compressed.score(pass, context, scores),
        }
    }

    /// Returns bounds of the attention mass of blocks in the current layer, `[rows, num_heads, score_stride]`, in steps that
    /// request them.
    pub(super) fn bounds(&self) -> Option<&Buf<f32>> {
        match &self.kind {
            ScorerKind::Digests(digests) => digests.bounds(),
            ScorerKind::Hashes(_) | ScorerKind::Compressed(_) => None,
        }
    }
}
