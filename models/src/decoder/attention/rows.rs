//! Rows of heads that are attended one by one.

use attn_kernels::gpu::{Bind, Buf};
use attn_kernels::kernel::paged_decode::{PagedDecodeBuffers, PagedDecodeParams};
use attn_kernels::kernel::paged_reduce::{PagedReduceBuffers, PagedReduceParams};
use attn_kernels::rows::PhysicalBlock;
use attn_kernels::split::{KeySplit, SplitPlan};

use crate::cast::u32_of;
use crate::decoder::batch::AttentionRows;
use crate::decoder::kernels::HeadKernels;
use crate::decoder::keys::{Keys, Needed};
use crate::decoder::ops::Ctx;
use crate::decoder::portions::{Portion, RowKernel, RowTask};
use crate::decoder::ring_schedule::KeyRange;
use crate::decoder::sparse::Selected;

/// Rows that are attended in the same way, one by one or in tiles.
pub(super) struct HeadRows<'a> {
    pub(super) layer: usize,
    /// Rotated queries of all rows.
    pub(super) q: &'a Buf<f32>,
    pub(super) kernels: &'a HeadKernels,
    pub(super) sinks: Option<&'a Buf<f32>>,
    pub(super) rows: &'a AttentionRows,
    /// Lists of selected blocks; `None` for attention to all blocks.
    pub(super) selected: Option<&'a Selected<'a>>,
    pub(super) keys: Keys<'a>,
    pub(super) split: SplitPlan,
    /// Parts into which the keys of tiles are split.
    pub(super) parts: KeySplit,
}

impl<'a> HeadRows<'a> {
    /// Returns the rows that are attended one by one.
    pub(super) fn task(&self) -> RowTask<'a> {
        RowTask {
            rows: &self.rows.decode,
            max_keys: self.selected.map_or(u32::MAX, Selected::tokens),
            max_partitions: self.split.max_partitions,
            keys: self.keys,
        }
    }

    /// Returns the lists of selected blocks, if there are any.
    pub(super) fn lists(&self) -> Option<Bind<u32>> {
        self.selected.map(|selected| selected.lists.bind.clone())
    }

    /// Number of entries from one list to the next.
    pub(super) fn list_stride(&self) -> u32 {
        self.selected.map_or(0, |selected| selected.lists.stride)
    }

    /// Returns the block tables that rows read.
    pub(super) fn tables(&self, ctx: &Ctx<'_>) -> Bind<PhysicalBlock> {
        match (self.keys, ctx.keys.pages()) {
            (Keys::Slots(_), Some(pages)) => pages.pages(self.layer).bind(),
            (Keys::Ring(stream), _) => ctx.offload_plan.tables(stream),
            _ => ctx.batch.tables.bind(),
        }
    }

    /// Whether partitions need a reduction.
    fn reduced(&self, portion: &Portion) -> bool {
        self.split.max_partitions > 1 || self.sinks.is_some() || portion.in_chunks
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
            softcap: c.score_softcap.unwrap_or_default(),
            reduced: u32::from(self.reduced(portion)),
            list_stride: self.list_stride(),
            first_row: u32_of(portion.rows.start),
            rows: u32_of(portion.rows.len()),
            ..PagedDecodeParams::default()
        }
    }
}

impl RowKernel for HeadRows<'_> {
    fn attend(&self, ctx: &mut Ctx<'_>, portion: &Portion, keys: KeyRange) {
        let (rows, first_row) = (u32_of(portion.rows.len()), u32_of(portion.rows.start));
        if let (Keys::Slots(_), Some(selected)) = (self.keys, self.selected) {
            let size = ctx.kv.shape().block_size;
            let end = keys.end.min(keys.first.saturating_add(keys.len)).div_ceil(size);
            let (requests, pages) = (first_row..first_row + rows, keys.first / size..end);
            let needed = Needed { layer: self.layer, lists: &selected.lists, requests, pages };
            ctx.make_resident(&needed);
        }
        let (act, SplitPlan { lanes, .. }) = (ctx.act, self.split);
        let out = if self.reduced(portion) { &*act.partial } else { &act.attended };
        let [k, v] = ctx.kv.keys_in(self.layer, keys.at) else { unreachable!("heads have keys and values") };
        let buffers = PagedDecodeBuffers {
            q: self.q.bind(),
            k_cache: k.bind(),
            v_cache: v.bind(),
            tables: self.tables(ctx),
            rows: self.rows.decode.bind(),
            partial: out.bind(),
            stats: act.stats.bind(),
            selected: self.lists(),
            slopes: None,
        };
        let params =
            PagedDecodeParams { first_key: keys.first, num_keys: keys.len, ..self.params(ctx, portion) };
        ctx.pass.dispatch(self.kernels.decode(lanes), &params, buffers);
    }

    fn reduce(&self, ctx: &mut Ctx<'_>, portion: &Portion) {
        let (params, rows) = (self.params(ctx, portion), u32_of(portion.rows.len()));
        let list = self.rows.decode.bind();
        if let Some(selected) = self.selected {
            selected.certify(ctx, self.layer, &list, &params, rows);
        }
        if !self.reduced(portion) {
            return;
        }
        let act = ctx.act;
        let buffers = PagedReduceBuffers {
            partial: act.partial.bind(),
            stats: act.stats.bind(),
            rows: list,
            out: act.attended.bind(),
            selected: self.lists(),
            sinks: self.sinks.map(Buf::bind),
        };
        let params = PagedReduceParams::from(&params);
        ctx.pass.dispatch(&self.kernels.reduce, &params, buffers);
    }
}
