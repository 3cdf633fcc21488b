//! Records the attention of a layer with keys and values per head.

use attn_kernels::gpu::Buf;
use attn_kernels::split::KeySplit;

use super::heads::Heads;
use super::projection::{append, project};
use super::rows::HeadRows;
use super::tiles::Tiles;
use crate::ModelError;
use crate::decoder::batch::Dense;
use crate::decoder::keys::{Keys, RingKeys};
use crate::decoder::ops::Ctx;
use crate::decoder::portions::{attend_rows, ring_schedule};
use crate::decoder::ring_schedule::run_schedule;
use crate::decoder::sparse::Sparse;
use crate::decoder::splits::Division;

impl Heads {
    /// Records the norm of the layer's input and its attention, and adds the output to the residual.
    pub(super) fn record(
        &mut self,
        ctx: &mut Ctx<'_>,
        layer: usize,
        norm: Option<&Buf<f32>>,
    ) -> Result<(), ModelError> {
        ctx.on_pages(|pages, context| pages.fetch_ahead(context, layer));
        let on_disk = ctx.keys.on_disk();
        if on_disk {
            // Summaries need the keys on the board.
            ctx.on_ring(|ring, context| ring.fetch_partial_blocks(context, layer)).unwrap_or(Ok(()))?;
            ctx.on_ring(|ring, context| ring.show(context, layer));
        }
        if let Some(sparse) = &self.sparse {
            sparse.summarise(ctx, layer);
        }
        let weights = &self.layers[layer];
        let inside = weights.qkv.iter().all(|(matrix, _)| ctx.norms(matrix));
        let (x, norm) = ctx.normed(norm, inside);
        project(ctx, weights, x, norm)?;
        if !on_disk {
            ctx.on_ring(|ring, context| ring.fetch_partial_blocks(context, layer)).unwrap_or(Ok(()))?;
        }
        append(ctx, &self.rope_append, weights, layer, self.queries(ctx, layer));
        if ctx.keys.pages().is_some() {
            // Summaries and pages are made from the blocks on the host.
            ctx.on_ring(RingKeys::save);
        }
        if let Some(sparse) = &mut self.sparse {
            sparse.select(ctx, layer)?;
            sparse.previous().iter().for_each(|previous| previous.keep(ctx, layer));
        }
        self.attend(ctx, layer)?;
        ctx.keys.check()?;
        ctx.on_ring(RingKeys::end_layer).unwrap_or(Ok(()))?;
        let (weights, act) = (&self.layers[layer], ctx.act);
        if let Some(bias) = &weights.o_bias {
            ctx.add_bias(bias, ctx.block_out);
        }
        ctx.add_block(&weights.o, &act.attended, weights.post_norm.as_ref())
    }

    /// Returns the buffer of the layer's rotated queries.
    fn queries<'a>(&'a self, ctx: &Ctx<'a>, layer: usize) -> &'a Buf<f32> {
        let previous = self.sparse.as_ref().and_then(Sparse::previous);
        previous.and_then(|previous| previous.in_place(layer)).unwrap_or(&ctx.act.q)
    }

    /// Records the attention of all rows.
    fn attend(&self, ctx: &mut Ctx<'_>, layer: usize) -> Result<(), ModelError> {
        let (attn_group, index) = (ctx.group_rows(layer), ctx.attn_groups.of_layers[layer]);
        let kernels = self.kernels(index);
        let (q, sinks) = (self.queries(ctx, layer), self.layers[layer].sinks.as_ref());
        let dense = |which| {
            let Division { split, parts } = ctx.splits.of(index, which);
            let keys = Keys::of(ctx.offload_plan, index, which);
            HeadRows {
                layer,
                q,
                kernels,
                sinks,
                rows: attn_group.dense(which),
                selected: None,
                keys,
                split,
                parts,
            }
        };
        let Some(selected) = self.sparse.as_ref().and_then(|sparse| sparse.selected(layer)) else {
            let rows = dense(Dense::All);
            ctx.on_pages(|pages, context| pages.renew(context, layer));
            return self.attend_rows(ctx, &rows);
        };
        let whole = dense(Dense::Whole);
        self.attend_rows(ctx, &whole)?;
        let listed = HeadRows {
            kernels: selected.kernels,
            rows: &attn_group.selected,
            selected: Some(&selected),
            keys: ctx.keys.pages().map_or(Keys::Device, |pages| Keys::Slots(pages.capacity())),
            split: ctx.splits.listed(&attn_group.selected, selected.tokens()),
            parts: KeySplit::default(),
            ..whole
        };
        self.attend_rows(ctx, &listed)
    }

    fn attend_rows(&self, ctx: &mut Ctx<'_>, rows: &HeadRows<'_>) -> Result<(), ModelError> {
        let (task, tiles) = (rows.task(), Tiles { heads: self, rows });
        let Keys::Ring(stream) = rows.keys else {
            attend_rows(ctx, &task, rows);
            tiles.attend(ctx);
            return Ok(());
        };
        let streamed = |group: usize| tiles.streamed(ctx, &stream.groups[group]);
        let ring_schedule = ring_schedule(ctx.splits.planner(), &task, rows, stream, streamed);
        run_schedule(ctx, rows.layer, stream, ring_schedule)
    }
}
