//! Rows that attend a window and entries, one by one.

use attn_kernels::gpu::Bind;
use attn_kernels::gpu::Buf;
use attn_kernels::kernel::mla_decode::MlaDecodeBuffers;
use attn_kernels::kernel::mla_decode::MlaDecodeParams;
use attn_kernels::kernel::paged_reduce::{PagedReduceBuffers, PagedReduceParams};
use attn_kernels::rows::DecodeRow;

use super::CompressedAttention;
use super::caches::LayerCaches;
use crate::CachePart;
use crate::cast::u32_of;
use crate::decoder::ops::Ctx;
use crate::decoder::portions::{Portion, RowKernel};
use crate::decoder::ring_schedule::KeyRange;

/// Rows that attend slots of a window and of entries.
pub(super) struct SlotRows<'a> {
    pub(super) compressed: &'a CompressedAttention,
    pub(super) layer: usize,
    pub(super) caches: Option<LayerCaches>,
}

impl SlotRows<'_> {
    fn list(&self) -> Bind<DecodeRow> {
        let lists = &self.compressed.step;
        let rows = self.caches.map_or(&lists.rows, |caches| &lists.kinds[caches.kind].rows);
        // The kernel reads the counts of keys of rows over two caches.
        rows.bind().cast()
    }

    fn params(&self, ctx: &Ctx<'_>, portion: &Portion) -> MlaDecodeParams {
        let (step, heads) = (&self.compressed.step, ctx.config.num_heads);
        MlaDecodeParams {
            num_heads: heads,
            q_stride: heads * ctx.config.head_dim,
            max_partitions: step.split.max_partitions,
            partition_size: step.split.partition_size,
            reduced: 1,
            scale: ctx.config.scale,
            list_stride: step.window_stride,
            first_row: u32_of(portion.rows.start),
            rows: u32_of(portion.rows.len()),
            compressed_stride: self.caches.map_or(0, |caches| step.kinds[caches.kind].stride),
            ..MlaDecodeParams::default()
        }
    }
}

impl RowKernel for SlotRows<'_> {
    fn attend(&self, ctx: &mut Ctx<'_>, portion: &Portion, _: KeyRange) {
        let (state, act) = (self.compressed, ctx.act);
        let window = ctx.kv.buffer(self.layer, CachePart::Latent);
        let window_slots = state.step.window(ctx.attn_groups.of_layers[self.layer]);
        // A layer without entries reads nothing of the second cache.
        let (entries, entry_slots) = match self.caches {
            None => (window, window_slots),
            Some(LayerCaches { kind, .. }) => {
                (ctx.kv.buffer(self.layer, CachePart::Entries), state.step.kinds[kind].seen())
            }
        };
        let buffers = MlaDecodeBuffers {
            q: act.q.bind(),
            latents: window.bind(),
            tables: None,
            compressed: Some(entries.bind()),
            rows: self.list(),
            partial: act.partial.bind(),
            stats: act.stats.bind(),
            selected: None,
            window_slots: Some(window_slots.bind()),
            compressed_slots: Some(entry_slots.bind()),
        };
        let params = self.params(ctx, portion);
        ctx.pass.dispatch(&state.attend, &params, buffers);
    }

    fn reduce(&self, ctx: &mut Ctx<'_>, portion: &Portion) {
        let (state, act) = (self.compressed, ctx.act);
        let params = PagedReduceParams::from(&self.params(ctx, portion));
        let list = self.list();
        let buffers = PagedReduceBuffers {
            partial: act.partial.bind(),
            stats: act.stats.bind(),
            rows: list,
            out: act.attended.bind(),
            selected: None,
            sinks: state.layers[self.layer].sinks.as_ref().map(Buf::bind),
        };
        ctx.pass.dispatch(&state.reduce, &params, buffers);
    }
}
