//! Blocks of chunks of prompts from strided antidiagonals (XAttention), in kernels: nothing of a layer is read back.
//!
//! A layer's lists are `strided_qk`, `softmax_block_sum` and `find_blocks` for some query blocks at a time, so that scratch
//! stays bounded, and `vote_blocks` where a chunk agrees on one set. `list_counts` keeps how many blocks that were.

use std::sync::Arc;

use attn_kernels::gpu::{Bind, Buf, Gpu, Pass, Pipeline};
use attn_kernels::kernel::find_blocks::Vote;
use attn_kernels::kernel::list_counts::{self, ListCountsParams};
use attn_kernels::kernel::vote_blocks::{self, VoteBlocksParams};
use attn_kernels::kernel::xattn::Estimate;
use attn_kernels::kernel::{KvShape, find_blocks, softmax_block_sum, strided_qk, strided_qk_coop};
use kvblock::BlockSize;
use sparse_select::policy::num_blocks;
use sparse_select::xattn::Antidiagonals;
use sparse_select::{Policy, SelectError};

use super::{Chosen, Place, Sparse, choosing, fit};
use crate::decoder::Decoder;
use crate::decoder::inputs::{Plan, ViewRows};
use crate::sparse::Tally;
use crate::{DecoderConfig, KvPool, ModelError};

/// f32 of scores that exist at one time, unless one query block has more.
const PARTS: usize = 16 << 20;

/// Kernels and buffers of an estimate.
#[derive(Debug)]
pub(super) struct Estimator {
    form: Antidiagonals,
    block: BlockSize,
    shape: KvShape,
    num_pages: u32,
    num_heads: u32,
    pipelines: Pipelines,
    /// Whether scores go through cooperative matrices.
    coop: bool,
    /// `[num_heads]`
    thresholds: Buf<f32>,
    parts: Buf<f32>,
    sums: Buf<f32>,
    /// Lists `[query_blocks, num_kv_heads]` that vote.
    voters: Buf<u32>,
    /// `[first list, lists]` of every chunk of the step.
    spans: Buf<[u32; 2]>,
    /// Blocks that lists name, `[layers, chunks]`.
    pub(super) counts: Buf<u32>,
}

#[derive(Debug)]
struct Pipelines {
    score: Arc<Pipeline>,
    sum: Arc<Pipeline>,
    find: Arc<Pipeline>,
    vote: Arc<Pipeline>,
    count: Arc<Pipeline>,
}

impl Estimator {
    /// `None` where the policy has no such form, or the kernels none of its sizes or types.
    pub(super) fn new(
        gpu: &Gpu,
        policy: &dyn Policy,
        config: &DecoderConfig,
        kv: &KvPool,
        coop: bool,
    ) -> Result<Option<Self>, ModelError> {
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
        let thresholds: Vec<f32> = thresholds.into_iter().map(narrow).collect();
        let q_stride = config.num_heads * config.head_dim;
        let coop = coop && strided_qk_coop::serves(&shape, form.stride, block, q_stride);
        let score = match coop {
            true => strided_qk_coop::variant(&shape, form.stride, block),
            false => strided_qk::variant(&shape, form.stride, block),
        };
        let pipelines = Pipelines {
            score: gpu.pipeline(&score)?,
            sum: gpu.pipeline(&softmax_block_sum::variant(form.stride, block))?,
            find: gpu.pipeline(&find_blocks::variant(config.num_heads / config.num_kv_heads))?,
            vote: gpu.pipeline(&vote_blocks::variant())?,
            count: gpu.pipeline(&list_counts::variant())?,
        };
        Ok(Some(Self {
            form,
            block: policy.block_size(),
            shape,
            num_pages: kv.num_blocks(),
            num_heads: config.num_heads,
            pipelines,
            coop,
            thresholds: gpu.upload("thresholds", &thresholds)?,
            parts: gpu.buffer("parts", 1)?,
            sums: gpu.buffer("sums", 1)?,
            voters: gpu.buffer("voters", 1)?,
            spans: gpu.buffer("spans", 1)?,
            counts: gpu.buffer("counts", 1)?,
        }))
    }

    /// A chunk's queries against the keys that lists of it choose among.
    fn estimate(&self, chosen: &Chosen) -> Estimate {
        let narrow = |n: usize| u32::try_from(n).expect("rows of a step fit in 32 bits");
        let causal = self.form.vote.is_none();
        let kv_len = if causal { narrow(chosen.kv_len()) } else { self.history(chosen) * self.block.get() };
        Estimate {
            num_heads: self.num_heads,
            q_stride: self.num_heads * self.shape.head_dim,
            q_first: narrow(chosen.row),
            q_len: narrow(chosen.rows),
            kv_len,
            table: narrow(chosen.table.start),
            causal,
            stride: self.form.stride,
            block: self.block.get(),
            #[expect(clippy::cast_possible_truncation, reason = "rounds to the nearest f32")]
            norm: self.form.norm as f32,
            vote: Vote::Any,
        }
    }

    /// Blocks before the one in which a chunk begins.
    fn history(&self, chosen: &Chosen) -> u32 {
        chosen.position / self.block.get()
    }

    /// Makes room for the chunks of a step.
    fn fit(
        &mut self,
        gpu: &Gpu,
        plan: &Plan,
        chosen: &[Chosen],
        (layers, stride): (usize, u32),
    ) -> Result<(), ModelError> {
        let kv_heads = self.shape.num_kv_heads;
        let (mut spans, mut first) = (Vec::new(), 0);
        for chosen in chosen {
            let estimate = self.estimate(chosen);
            let lists = chosen.lists * kv_heads;
            let votes = self.form.vote.is_some();
            let into = if votes { (estimate.key_blocks() + 1, 0) } else { (stride, first) };
            let out_len = if votes {
                (estimate.query_blocks() * kv_heads * into.0) as usize
            } else {
                (first + lists) as usize * stride as usize
            };
            let q_len = plan.rows as usize * estimate.q_stride as usize;
            estimate.check(&self.shape, into, (&plan.tables, self.num_pages), [q_len, out_len])?;
            let round = estimate.rounds(PARTS).next().map_or(0, |round| round.end);
            let [parts, sums] = estimate.scratch_lens(round);
            fit(gpu, &mut self.parts, parts)?;
            fit(gpu, &mut self.sums, sums)?;
            if votes {
                fit(gpu, &mut self.voters, out_len)?;
            }
            spans.push([first, lists]);
            first += lists;
        }
        fit(gpu, &mut self.spans, spans.len())?;
        gpu.write(&self.spans, 0, &spans);
        fit(gpu, &mut self.counts, layers * chosen.len())
    }

    /// Records the lists of a layer's chunks.
    fn record(&self, pass: &mut Pass, chosen: &[Chosen], (q, k, tables): (&Bind, &Bind, &Bind), out: &Out) {
        let kv_heads = self.shape.num_kv_heads;
        for chosen in chosen {
            let estimate = self.estimate(chosen);
            let first_list = chosen.list * kv_heads;
            let (lists, stride, first) = match self.form.vote {
                Some(_) => (Bind::from(&self.voters), estimate.key_blocks() + 1, 0),
                None => (out.lists.clone(), out.stride, first_list),
            };
            for blocks in estimate.rounds(PARTS) {
                let params = estimate.strided_qk(&self.shape, &blocks);
                let grid = match self.coop {
                    true => strided_qk_coop::grid(&params, self.form.stride),
                    false => strided_qk::grid(&params, self.form.stride),
                };
                let bindings = [q.clone(), k.clone(), tables.clone(), (&self.parts).into()];
                pass.dispatch(&self.pipelines.score, &params, &bindings, grid);
                let params = estimate.softmax_block_sum(&blocks);
                let grid = softmax_block_sum::grid(self.num_heads, blocks.end - blocks.start);
                let bindings: [Bind; 2] = [(&self.parts).into(), (&self.sums).into()];
                pass.dispatch(&self.pipelines.sum, &params, &bindings, grid);
                let params = estimate.find_blocks(&self.shape, &blocks, stride, first);
                let bindings: [Bind; 3] = [(&self.sums).into(), (&self.thresholds).into(), lists.clone()];
                pass.dispatch(&self.pipelines.find, &params, &bindings, find_blocks::grid(&params));
            }
            if let Some(vote) = self.form.vote {
                let voters = estimate.query_blocks() * kv_heads;
                let votes = vote.needed(voters as usize);
                let params = VoteBlocksParams {
                    voters,
                    in_stride: stride,
                    votes: u32::try_from(votes).expect("at most the voters"),
                    blocks: self.history(chosen),
                    end: num_blocks(chosen.kv_len(), self.block),
                    copies: kv_heads,
                    out_stride: out.stride,
                    first_list,
                };
                let bindings = [lists, out.lists.clone()];
                pass.dispatch(&self.pipelines.vote, &params, &bindings, vote_blocks::grid());
            }
        }
    }

    /// Records the lengths of a layer's lists.
    fn count(&self, pass: &mut Pass, layer: usize, chunks: usize, out: &Out) {
        let narrow = |n: usize| u32::try_from(n).expect("chunks of a step fit in 32 bits");
        let params =
            ListCountsParams { list_stride: out.stride, first: narrow(layer * chunks), pad0: 0, pad1: 0 };
        let bindings = [out.lists.clone(), (&self.spans).into(), (&self.counts).into()];
        pass.dispatch(&self.pipelines.count, &params, &bindings, list_counts::grid(narrow(chunks)));
    }
}

/// Where lists go.
struct Out {
    lists: Bind,
    stride: u32,
}

impl Sparse {
    /// Begins a step whose chunks kernels estimate.
    pub(super) fn begin_estimate(&mut self, gpu: &Gpu, plan: &Plan) -> Result<(), ModelError> {
        let Some(view) = choosing(plan) else { return Ok(()) };
        let longest = view.chosen.iter().map(Chosen::kv_len).max().unwrap_or(0);
        let stride = 1 + num_blocks(longest, self.options.policy.block_size());
        let estimator = self.estimator.as_mut().expect("kernels estimate");
        estimator.fit(gpu, plan, &view.chosen, (self.placed.len(), stride))?;
        let lists: usize = view.chosen.iter().map(|chosen| chosen.lists as usize).sum();
        let words = lists * self.num_kv_heads * stride as usize;
        for layer in 0..self.placed.len() {
            if self.is_sparse_in(&plan.views[self.view_of[layer]], layer) {
                self.placed[layer] = Some(Place { first: 0, stride });
            }
        }
        fit(gpu, &mut self.lists, words)?;
        self.trace(gpu, words)
    }

    /// Takes what the lists of a step counted, `[layers, chunks]`.
    pub(super) fn take_counts(&mut self, plan: &Plan, counts: &[u32]) {
        let Some(view) = choosing(plan) else { return };
        let block = self.options.policy.block_size().get();
        for (layer, counts) in counts.chunks_exact(view.chosen.len()).enumerate() {
            if self.placed[layer].is_none() {
                continue;
            }
            for (chosen, count) in view.chosen.iter().zip(counts) {
                let visible = chosen.visible(block) * self.num_kv_heads as u64;
                let attended = self.attended[chosen.slice].as_mut().expect("the policy acts on chosen rows");
                attended.count(layer, Tally { blocks: u64::from(*count), visible });
            }
        }
    }
}

impl Decoder {
    /// Records the lists of a layer's chunks, where kernels estimate them.
    pub(super) fn estimate_on_device(&self, pass: &mut Pass, layer: usize, plan: &ViewRows) {
        let Some(sparse) = &self.sparse else { return };
        let (Some(estimator), Some(place)) = (&sparse.estimator, sparse.placed[layer]) else { return };
        let (k, _) = self.kv.home(layer);
        let from = (&(&self.activations.q).into(), &k.into(), &(&self.inputs.tables).into());
        let out = Out { lists: (&sparse.lists).into(), stride: place.stride };
        estimator.record(pass, &plan.chosen, from, &out);
        estimator.count(pass, layer, plan.chosen.len(), &out);
        sparse.copy_trace(pass, layer);
    }
}

#[expect(clippy::cast_possible_truncation, reason = "rounds to the nearest f32")]
fn narrow(x: f64) -> f32 {
    x as f32
}
