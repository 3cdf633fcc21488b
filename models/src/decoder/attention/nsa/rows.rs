//! Rows that attend selected blocks or a window, one by one.

use std::sync::Arc;

use attn_kernels::gpu::{Bind, Buf, Pipeline};
use attn_kernels::kernel::attention::Attention;
use attn_kernels::kernel::paged_decode::{self, PagedDecodeBuffers, PagedDecodeParams};
use attn_kernels::kernel::paged_reduce::{self, PagedReduceBuffers, PagedReduceParams};
use attn_kernels::rows::DecodeRow;
use attn_kernels::split::SplitPlan;

use crate::ModelError;
use crate::cast::u32_of;
use crate::decoder::buffers::StepList;
use crate::decoder::kernels::LoadContext;
use crate::decoder::ops::Ctx;
use crate::decoder::portions::{Portion, RowKernel};
use crate::decoder::ring_schedule::KeyRange;
use crate::kv::split_planner;

/// Kernels of a branch.
#[derive(Debug)]
pub(super) struct BranchKernels {
    decode: Arc<Pipeline>,
    reduce: Arc<Pipeline>,
}

/// All rows in one branch.
pub(super) struct BranchRows<'a> {
    pub(super) layer: usize,
    pub(super) kernels: &'a BranchKernels,
    pub(super) rows: &'a StepList<DecodeRow>,
    /// Lists of selected blocks, and the number of words from one list to the next; `None` for the window.
    pub(super) lists: Option<(&'a Buf<u32>, u32)>,
    pub(super) split: SplitPlan,
    pub(super) out: &'a Buf<f32>,
}

impl BranchKernels {
    pub(super) fn new(load: &LoadContext<'_>, attention: &Attention) -> Result<Self, ModelError> {
        let LoadContext { gpu, config, options, kv, .. } = *load;
        // The form must not hang on the batch: rows have few keys in either branch, however many there are.
        let lanes = split_planner(gpu, config, kv.shape(), options.uses_coop(gpu)).lanes(0);
        Ok(Self {
            decode: gpu.pipeline(&paged_decode::variant(kv.shape(), config.num_heads, lanes, attention))?,
            reduce: gpu.pipeline(&paged_reduce::best(gpu.profile(), kv.shape(), attention))?,
        })
    }
}

impl BranchRows<'_> {
    fn lists(&self) -> Option<Bind<u32>> {
        self.lists.map(|(lists, _)| lists.bind())
    }

    fn params(&self, ctx: &Ctx<'_>, portion: &Portion) -> PagedDecodeParams {
        let c = ctx.config;
        PagedDecodeParams {
            num_heads: c.num_heads,
            num_kv_heads: c.num_kv_heads,
            q_stride: c.num_heads * c.head_dim,
            max_partitions: self.split.max_partitions,
            partition_size: self.split.partition_size,
            scale: c.scale,
            reduced: u32::from(self.split.max_partitions > 1),
            list_stride: self.lists.map_or(0, |(_, stride)| stride),
            first_row: u32_of(portion.rows.start),
            rows: u32_of(portion.rows.len()),
            ..PagedDecodeParams::default()
        }
    }
}

impl RowKernel for BranchRows<'_> {
    fn attend(&self, ctx: &mut Ctx<'_>, portion: &Portion, _: KeyRange) {
        let (act, params) = (ctx.act, self.params(ctx, portion));
        let (k, v) = ctx.kv.layer(self.layer);
        let buffers = PagedDecodeBuffers {
            q: act.q.bind(),
            k_cache: k.bind(),
            v_cache: v.bind(),
            tables: ctx.batch.tables.bind(),
            rows: self.rows.bind(),
            partial: if params.reduced == 1 { act.partial.bind() } else { self.out.bind() },
            stats: act.stats.bind(),
            selected: self.lists(),
            slopes: None,
        };
        ctx.pass.dispatch(&self.kernels.decode, &params, buffers);
    }

    fn reduce(&self, ctx: &mut Ctx<'_>, portion: &Portion) {
        let (act, params) = (ctx.act, self.params(ctx, portion));
        if params.reduced == 0 {
            return;
        }
        let params = PagedReduceParams::from(&params);
        let buffers = PagedReduceBuffers {
            partial: act.partial.bind(),
            stats: act.stats.bind(),
            rows: self.rows.bind(),
            out: self.out.bind(),
            selected: self.lists(),
            sinks: None,
        };
        ctx.pass.dispatch(&self.kernels.reduce, &params, buffers);
    }
}
