//! Tiles of prefills whose keys pass through the ring: a chunk of keys at a time.

use std::ops::Range;
use std::sync::Arc;

use attn_kernels::gpu::{Buf, Gpu, Pipeline};
use attn_kernels::kernel::lse_merge::{self, LseMergeBuffers, LseMergeParams};
use attn_kernels::kernel::paged_prefill::{self, PagedPrefillParams};

use super::tiles::Tiles;
use crate::cast::u32_of;
use crate::decoder::keys::Group;
use crate::decoder::ops::Ctx;
use crate::decoder::options::DecoderOptions;
use crate::decoder::portions::KeyRange;
use crate::decoder::walk::Attend;
use crate::{DecoderConfig, ModelError};

/// Merges a chunk's output into that of the chunks before, for the kernel with cooperative matrices, which begins anew with
/// every dispatch; the one without goes on from the output itself.
#[derive(Debug)]
pub(super) struct Merge {
    pipeline: Arc<Pipeline>,
    /// Output of one chunk, `[max_rows, num_heads * head_dim]`.
    out: Buf<f32>,
    /// Log-sum-exp of one chunk, `[max_rows, num_heads]`.
    lse: Buf<f32>,
    /// Minus infinity for every row: merged, it changes nothing.
    nothing: Buf<f32>,
}

impl Merge {
    pub(super) fn new(
        gpu: &Gpu,
        config: &DecoderConfig,
        options: &DecoderOptions,
    ) -> Result<Self, ModelError> {
        let heads = options.max_rows as usize * config.num_heads as usize;
        Ok(Self {
            pipeline: gpu.pipeline(&lse_merge::variant(config.head_dim))?,
            out: gpu.buffer("chunk_out", heads * config.head_dim as usize)?,
            lse: gpu.buffer("chunk_lse", heads)?,
            nothing: gpu.upload("chunk_nothing", &vec![f32::NEG_INFINITY; heads])?,
        })
    }

    fn clear(&self, ctx: &mut Ctx<'_>) {
        ctx.pass.copy(&self.nothing, 0..self.lse.len(), &self.lse, 0);
    }

    /// Records that the first `rows` rows take the chunk in.
    fn record(&self, ctx: &mut Ctx<'_>, rows: u32) {
        let rows = rows * ctx.config.num_heads;
        let params = LseMergeParams { rows, neg_inf: f32::NEG_INFINITY };
        let act = ctx.act;
        let buffers = LseMergeBuffers {
            b_out: self.out.bind(),
            b_lse: self.lse.bind(),
            a_out: act.attended.bind(),
            a_lse: act.lse.bind(),
        };
        ctx.pass.dispatch(&self.pipeline, &params, buffers, lse_merge::grid(ctx.config.head_dim, rows));
    }
}

/// Tiles of a group that attend chunk by chunk.
struct StreamedTiles<'a> {
    tiles: &'a Tiles<'a>,
    /// Their places among the tiles of the step's rows.
    range: Range<usize>,
    seen: Range<u32>,
    /// End of the rows of all tiles: one past the last.
    end_row: u32,
    /// Chunks so far.
    chunks: u32,
}

impl<'a> Tiles<'a> {
    /// The tiles of a group, if it has any.
    pub(super) fn streamed(&'a self, ctx: &Ctx<'_>, group: &Group) -> Option<Box<dyn Attend + 'a>> {
        let range = group.tiles(&self.rows.rows.tiles);
        let tiles = &self.rows.rows.tiles[range.clone()];
        let (first, last) = self.seen(ctx, tiles)?.into_inner();
        let end_row = tiles.iter().map(|tile| tile.row + tile.rows).max().unwrap_or(0);
        Some(Box::new(StreamedTiles { tiles: self, range, seen: first..last + 1, end_row, chunks: 0 }))
    }
}

impl Attend for StreamedTiles<'_> {
    fn seen(&self) -> Range<u32> {
        self.seen.clone()
    }

    fn begin(&mut self, ctx: &mut Ctx<'_>) {
        if let Some(merge) = &self.tiles.heads.merge {
            merge.clear(ctx);
        }
    }

    fn attend(&mut self, ctx: &mut Ctx<'_>, keys: KeyRange) {
        let (act, rows) = (ctx.act, self.tiles.rows);
        let merge = self.tiles.heads.merge.as_ref().filter(|_| self.chunks > 0);
        self.chunks += 1;
        let to = merge.map_or([&act.attended, &act.lse], |merge| [&merge.out, &merge.lse]);
        let buffers = self.tiles.buffers(ctx, rows.rows.tiles.bind_from(self.range.start), keys.at, to);
        let grid = self.tiles.grid(ctx, u32_of(self.range.len()));
        let end = keys.first + keys.len;
        let last = self.seen.end.min(end) - 1;
        for (offset, num_keys) in paged_prefill::segments(0, last - keys.first, ctx.gpu.is_cpu()) {
            let first_key = keys.first + offset;
            let num_keys = num_keys.min(end - first_key);
            let params = PagedPrefillParams { first_key, num_keys, ..self.tiles.params(ctx) };
            ctx.pass.dispatch(&rows.kernels.prefill, &params, buffers.clone(), grid);
        }
        if let Some(merge) = merge {
            merge.record(ctx, self.end_row);
        }
    }

    fn end(&mut self, ctx: &mut Ctx<'_>) {
        self.tiles.apply_sinks(ctx, &self.tiles.rows.rows.tiles[self.range.clone()]);
    }
}
