//! Selections that certify an attention mass, in kernels: the device decides how many blocks a row keeps, which is read back at
//! the end of a step.

use std::sync::Arc;

use attn_kernels::gpu::{Buf, Gpu, Pipeline};
use attn_kernels::kernel::block_lse::BlockLseBuffers;
use attn_kernels::kernel::block_lse::{self, BlockLseParams};
use attn_kernels::kernel::list_counts::{self, ListCountsBuffers, ListCountsParams};
use attn_kernels::kernel::mass_cut::MassCutBuffers;
use attn_kernels::kernel::mass_cut::{self, MassCutParams, ROUNDS};
use attn_kernels::rows::ListSpan;
use sparse_select::Policy;
use sparse_select::certificate::odds;

use super::Rules;
use super::lists::DeviceLists;
use super::rank::RankContext;
use crate::cast::{f32_of, u32_of};
use crate::decoder::buffers::GrowBuf;
use crate::decoder::kernels::LoadContext;
use crate::decoder::ops::Ctx;
use crate::{DecoderConfig, ModelError};

/// Kernels and buffers of a selection by certified mass.
#[derive(Debug)]
pub(super) struct Mass {
    lse: Arc<Pipeline>,
    cut: Arc<Pipeline>,
    count: Arc<Pipeline>,
    odds: f32,
    /// Number of tokens per block.
    select_block: u32,
    /// Log-sum-exp of the logits of each block, `[rows, num_heads, score_stride]`.
    lses: GrowBuf<f32>,
    /// Results of `mass_cut`, `[rows, num_kv_heads]`.
    cuts: GrowBuf<[u32; 4]>,
    /// Positions of the lists of every row.
    spans: GrowBuf<ListSpan>,
    /// Number of blocks in lists, `[layers, rows]`.
    pub(super) counts: GrowBuf<u32>,
}

/// Size of a step.
pub(super) struct MassExtent {
    pub(super) layers: usize,
    pub(super) rows: usize,
    /// Maximum number of blocks of a row.
    pub(super) blocks: u32,
}

/// Scores of a layer's blocks, and the lists to make from them.
pub(super) struct Ranked<'a> {
    /// Scores of blocks, `[rows, sets, score_stride]`.
    pub(super) scores: &'a Buf<f32>,
    pub(super) score_stride: u32,
    pub(super) lists: &'a DeviceLists,
}

impl Mass {
    /// Creates the selection by certified mass of a policy; `None` if a budget determines the number of blocks.
    pub(super) fn new(load: &LoadContext<'_>, policy: &dyn Policy) -> Result<Option<Self>, ModelError> {
        let LoadContext { gpu, config, kv, .. } = *load;
        let Some(mass) = policy.mass() else { return Ok(None) };
        let select_block = policy.block_size().get();
        Ok(Some(Self {
            lse: gpu.pipeline(&block_lse::variant(kv.shape(), config.num_heads, select_block))?,
            cut: gpu.pipeline(&mass_cut::variant(config.num_heads / config.num_kv_heads))?,
            count: gpu.pipeline(&list_counts::variant())?,
            odds: f32_of(odds(mass)),
            select_block,
            lses: GrowBuf::new(gpu, "lses", 1)?,
            cuts: GrowBuf::new(gpu, "cuts", 1)?,
            spans: GrowBuf::new(gpu, "spans", 1)?,
            counts: GrowBuf::new(gpu, "counts", 1)?,
        }))
    }

    /// Allocates the buffers of a step.
    pub(super) fn fit(
        &mut self,
        gpu: &Gpu,
        config: &DecoderConfig,
        extent: &MassExtent,
    ) -> Result<(), ModelError> {
        let MassExtent { layers, rows, blocks } = *extent;
        let kv_heads = config.num_kv_heads;
        self.lses.fit(gpu, rows * config.num_heads as usize * blocks as usize)?;
        self.cuts.fit(gpu, rows * kv_heads as usize)?;
        let span = |row| ListSpan { first: row * kv_heads, lists: kv_heads };
        self.spans.write(gpu, &(0..u32_of(rows)).map(span).collect::<Vec<_>>())?;
        self.counts.fit(gpu, layers * rows)
    }

    /// Returns the numbers that the step's commands depend on.
    pub(super) fn shape(&self) -> [usize; 4] {
        [self.lses.len(), self.cuts.len(), self.spans.len(), self.counts.len()]
    }

    /// Records the lists of a layer whose blocks are scored. Keys are read in the order of scores, until bounds certify
    /// that the lists keep enough mass.
    pub(super) fn cut(
        &self,
        rules: &Rules,
        ctx: &mut Ctx<'_>,
        ranked: &Ranked<'_>,
        bounds: &Buf<f32>,
        context: &RankContext<'_>,
    ) {
        let (config, pass) = (ctx.config, &mut *ctx.pass);
        let lse = BlockLseParams {
            num_heads: config.num_heads,
            num_kv_heads: config.num_kv_heads,
            q_stride: config.num_heads * config.head_dim,
            stride: ranked.score_stride,
            scale: config.scale,
            first: 0,
            rows: context.count,
        };
        let cut = MassCutParams {
            num_heads: config.num_heads,
            num_kv_heads: config.num_kv_heads,
            stride: ranked.score_stride,
            select_block: self.select_block,
            list_stride: ranked.lists.stride,
            round: 0,
            odds: self.odds,
            slack: rules.slack,
            rows: context.count,
        };
        let of_lse = BlockLseBuffers {
            q: context.q.bind(),
            k_cache: context.kv.whole(context.layer)[0].bind(),
            tables: context.tables.bind(),
            rows: context.rows.bind(),
            scores: ranked.scores.bind(),
            cuts: self.cuts.bind(),
            lses: self.lses.bind(),
        };
        let of_cut = MassCutBuffers {
            rows: context.rows.bind(),
            scores: ranked.scores.bind(),
            bounds: bounds.bind(),
            lses: self.lses.bind(),
            cuts: self.cuts.bind(),
            lists: ranked.lists.bind(),
        };
        for round in ROUNDS {
            let lse = BlockLseParams { first: u32::from(round == mass_cut::FIRST), ..lse };
            pass.dispatch(&self.lse, &lse, of_lse.clone());
            pass.dispatch(&self.cut, &MassCutParams { round, ..cut }, of_cut.clone());
        }
        let (spans, list_stride) = (context.count, ranked.lists.stride);
        let params = ListCountsParams { list_stride, first: u32_of(context.layer) * spans, spans };
        let buffers = ListCountsBuffers {
            lists: ranked.lists.bind(),
            spans: self.spans.bind(),
            counts: self.counts.bind(),
        };
        pass.dispatch(&self.count, &params, buffers);
    }
}
