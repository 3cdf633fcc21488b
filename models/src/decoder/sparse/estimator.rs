//! Selection for prompt chunks by strided antidiagonals (XAttention), in kernels: nothing of a layer is read back.
//!
//! A layer's lists are `stride_queries`, `strided_qk`, `softmax_block_sum` and `find_blocks` for some query blocks at a time, so
//! that scratch stays bounded, and `vote_blocks` where a chunk agrees on one set. `list_counts` keeps how many blocks that were.

use std::ops::Range;
use std::sync::Arc;

use attn_kernels::gpu::{Buf, Gpu, Pass, Pipeline};
use attn_kernels::kernel::find_blocks::FindBlocksBuffers;
use attn_kernels::kernel::find_blocks::Vote;
use attn_kernels::kernel::softmax_block_sum::SoftmaxBlockSumBuffers;
use attn_kernels::kernel::stride_queries::StrideQueriesBuffers;
use attn_kernels::kernel::strided_qk::{Scorer, StridedQkBuffers};
use attn_kernels::kernel::vote_blocks::{self, VoteBlocksBuffers, VoteBlocksParams};
use attn_kernels::kernel::xattn::Estimate;
use attn_kernels::kernel::{KvShape, find_blocks, softmax_block_sum};
use kvblock::BlockSize;
use sparse_select::policy::num_blocks;
use sparse_select::xattn::Antidiagonals;
use sparse_select::{Policy, SelectError};

use super::SelectingRows;
use super::chunks::{Inputs, ListChunks, PromptChunk};
use super::lists::DeviceLists;
use crate::ModelError;
use crate::cast::{f32_of, u32_of};
use crate::decoder::batch::Batch;
use crate::decoder::buffers::GrowBuf;
use crate::decoder::kernels::LoadContext;

/// Maximum number of f32 scores that exist at one time, unless a single query block has more.
const PARTS: usize = 16 << 20;

/// Kernels and buffers of a selection by antidiagonals.
#[derive(Debug)]
pub(super) struct Estimator {
    form: Antidiagonals,
    block: BlockSize,
    shape: KvShape,
    pool_blocks: u32,
    num_heads: u32,
    pipelines: Pipelines,
    /// Number of words of a row of strides.
    row_words: u32,
    /// Share of the mass to keep for each head, `[num_heads]`.
    thresholds: Buf<f32>,
    strides: GrowBuf<u32>,
    parts: GrowBuf<f32>,
    sums: GrowBuf<f32>,
    /// Lists that vote on a common selection, `[query_blocks, num_kv_heads]`.
    voters: GrowBuf<u32>,
}

#[derive(Debug)]
struct Pipelines {
    queries: Arc<Pipeline>,
    score: Arc<Pipeline>,
    sum: Arc<Pipeline>,
    find: Arc<Pipeline>,
    vote: Arc<Pipeline>,
}

impl Estimator {
    /// Creates the selector; `None` if the policy does not use antidiagonals, or if kernels do not support its sizes
    /// or types.
    pub(super) fn new(load: &LoadContext<'_>, policy: &dyn Policy) -> Result<Option<Self>, ModelError> {
        let LoadContext { gpu, config, options, kv, .. } = *load;
        let (shape, block) = (*kv.shape(), policy.block_size().get());
        let serves = |form: &Antidiagonals| {
            let rows = block / form.stride;
            (4..=1024).contains(&rows) && rows.is_power_of_two() && rows * form.stride == block
        };
        let Some(form) = policy.antidiagonals().filter(serves) else { return Ok(None) };
        let heads = config.num_heads as usize;
        let thresholds = match form.thresholds[..] {
            [one] => vec![one; heads],
            ref each if each.len() == heads => each.to_vec(),
            ref each => return Err(SelectError::ThresholdCount { got: each.len(), heads }.into()),
        };
        let thresholds: Vec<f32> = thresholds.into_iter().map(f32_of).collect();
        let profile = gpu.profile().rounded(options.uses_coop(gpu));
        let Scorer { scores, queries, row_words, .. } = Scorer::best(&profile, &shape, form.stride, block);
        let pipelines = Pipelines {
            queries: gpu.pipeline(&queries)?,
            score: gpu.pipeline(&scores)?,
            sum: gpu.pipeline(&softmax_block_sum::best(&profile, form.stride, block))?,
            find: gpu.pipeline(&find_blocks::best(&profile, config.num_heads / config.num_kv_heads))?,
            vote: gpu.pipeline(&vote_blocks::variant())?,
        };
        Ok(Some(Self {
            form,
            block: policy.block_size(),
            shape,
            pool_blocks: kv.num_blocks(),
            num_heads: config.num_heads,
            pipelines,
            row_words,
            thresholds: gpu.upload("thresholds", &thresholds)?,
            strides: GrowBuf::new(gpu, "strides", 1)?,
            parts: GrowBuf::new(gpu, "parts", 1)?,
            sums: GrowBuf::new(gpu, "sums", 1)?,
            voters: GrowBuf::new(gpu, "voters", 1)?,
        }))
    }

    /// Returns the parameters of the kernels for a chunk's queries and the keys that its lists select from.
    fn estimate(&self, selecting: &SelectingRows) -> Estimate {
        let causal = self.form.vote.is_none();
        let kv_len =
            if causal { u32_of(selecting.kv_len()) } else { self.history(selecting) * self.block.get() };
        Estimate {
            num_heads: self.num_heads,
            q_stride: self.num_heads * self.shape.head_dim,
            q_first: u32_of(selecting.row),
            q_len: u32_of(selecting.rows),
            kv_len,
            table: u32_of(selecting.table.start),
            causal,
            stride: self.form.stride,
            block: self.block.get(),
            norm: f32_of(self.form.norm),
            vote: Vote::Any,
        }
    }

    /// Returns the ranges of query blocks that are scored at a time.
    fn rounds(&self, estimate: &Estimate) -> impl Iterator<Item = Range<u32>> + use<> {
        estimate.rounds(PARTS, self.form.queries_at_a_time(estimate.kv_len as usize))
    }

    /// Returns the number of blocks before the chunk.
    fn history(&self, selecting: &SelectingRows) -> u32 {
        selecting.position / self.block.get()
    }
}

impl ListChunks for Estimator {
    fn fit(
        &mut self,
        gpu: &Gpu,
        batch: &Batch,
        PromptChunk { rows: selecting, .. }: &PromptChunk<'_>,
        stride: u32,
        first: u32,
    ) -> Result<(), ModelError> {
        let (estimate, kv_heads) = (self.estimate(selecting), self.shape.num_kv_heads);
        let votes = self.form.vote.is_some();
        let into = if votes { (estimate.key_blocks() + 1, 0) } else { (stride, first) };
        let lists = if votes { estimate.query_blocks() } else { selecting.lists };
        let out_len = (into.1 + lists * kv_heads) as usize * into.0 as usize;
        let q_len = batch.rows as usize * estimate.q_stride as usize;
        let tables = (bytemuck::cast_slice(&batch.tables), self.pool_blocks);
        estimate.check(&self.shape, into, tables, [q_len, out_len])?;
        let round = self.rounds(&estimate).next().map_or(0, |round| round.end);
        let [parts, sums] = estimate.scratch_lens(round);
        self.strides.fit(gpu, estimate.stride_rows(round) * self.row_words as usize)?;
        self.parts.fit(gpu, parts)?;
        self.sums.fit(gpu, sums)?;
        if votes { self.voters.fit(gpu, out_len) } else { Ok(()) }
    }

    fn list(&self, pass: &mut Pass, chunk: &PromptChunk<'_>, from: &Inputs, to: &DeviceLists) {
        let selecting = chunk.rows;
        let (estimate, kv_heads) = (self.estimate(selecting), self.shape.num_kv_heads);
        let first_list = selecting.list * kv_heads;
        let (lists, stride, first) = match self.form.vote {
            Some(_) => (self.voters.bind(), estimate.key_blocks() + 1, 0),
            None => (to.bind(), to.stride, first_list),
        };
        for blocks in self.rounds(&estimate) {
            let params = estimate.stride_queries(&blocks);
            let buffers = StrideQueriesBuffers { q: from.q.clone(), strides: self.strides.bind() };
            pass.dispatch(&self.pipelines.queries, &params, buffers);
            let params = estimate.strided_qk(&self.shape, &blocks);
            let buffers = StridedQkBuffers {
                strides: self.strides.bind(),
                k_cache: from.k.clone(),
                tables: from.tables.clone(),
                parts: self.parts.bind(),
            };
            pass.dispatch(&self.pipelines.score, &params, buffers);
            let params = estimate.softmax_block_sum(&blocks);
            let buffers = SoftmaxBlockSumBuffers { parts: self.parts.bind(), sums: self.sums.bind() };
            pass.dispatch(&self.pipelines.sum, &params, buffers);
            let params = estimate.find_blocks(&self.shape, &blocks, stride, first);
            let (sums, thresholds) = (self.sums.bind(), self.thresholds.bind());
            let buffers = FindBlocksBuffers { sums, thresholds, out: lists.clone() };
            pass.dispatch(&self.pipelines.find, &params, buffers);
        }
        if let Some(vote) = self.form.vote {
            let voters = estimate.query_blocks() * kv_heads;
            let params = VoteBlocksParams {
                voters,
                in_stride: stride,
                votes: u32::try_from(vote.needed(voters as usize)).expect("at most the voters"),
                blocks: self.history(selecting),
                end: num_blocks(selecting.kv_len(), self.block),
                copies: kv_heads,
                out_stride: to.stride,
                first_list,
            };
            let buffers = VoteBlocksBuffers { lists, out: to.bind() };
            pass.dispatch(&self.pipelines.vote, &params, buffers);
        }
    }
}
