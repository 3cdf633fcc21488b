//! Tiles of prefills whose keys pass through the ring: a chunk of keys at a time.

use std::sync::Arc;

use attn_kernels::gpu::{Buf, Gpu, Pipeline};
use attn_kernels::kernel::lse_merge::{self, LseMergeBuffers, LseMergeParams};
use attn_kernels::kernel::paged_prefill::PagedPrefillParams;

use super::tiles::Tiles;
use crate::cast::u32_of;
use crate::decoder::keys::{Fetch, Group, Loaded, Stream};
use crate::decoder::ops::Ctx;
use crate::decoder::options::DecoderOptions;
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

impl Tiles<'_> {
    /// Records the attention of all tiles, group by group.
    pub(super) fn stream(&self, ctx: &mut Ctx<'_>, stream: &Stream) {
        for group in &stream.groups {
            self.stream_group(ctx, group);
        }
    }

    fn stream_group(&self, ctx: &mut Ctx<'_>, group: &Group) {
        let (act, layer) = (ctx.act, self.rows.layer);
        let range = group.tiles(&self.rows.rows.tiles);
        let tiles = &self.rows.rows.tiles[range.clone()];
        let Some(seen) = self.seen(ctx, tiles) else { return };
        let end_row = tiles.iter().map(|tile| tile.row + tile.rows).max().unwrap_or(0);
        let list = self.rows.bufs.tiles.bind_from(range.start);
        let grid = self.grid(ctx, u32_of(tiles.len()));
        if let Some(merge) = &self.heads.merge {
            merge.clear(ctx);
        }
        let mut loaded = Loaded::new(ctx.kv);
        let chunks = (0..=*seen.end()).step_by(group.chunk_tokens as usize).enumerate();
        // Windows of all tiles may begin later.
        let chunks = chunks.filter(|(_, first_key)| first_key + group.chunk_tokens > *seen.start());
        for (nth, (number, first_key)) in chunks.enumerate() {
            let pairs = &ctx.inputs.stream_pairs;
            ctx.keys.fetch(ctx.pass, ctx.kv, &Fetch { layer, group, number, pairs }, &mut loaded);
            let merge = self.heads.merge.as_ref().filter(|_| nth > 0);
            let to = merge.map_or([&act.attended, &act.lse], |merge| [&merge.out, &merge.lse]);
            let params = PagedPrefillParams { first_key, num_keys: group.chunk_tokens, ..self.params(ctx) };
            let buffers = self.buffers(ctx, list.clone(), to);
            ctx.pass.dispatch(&self.rows.kernels.prefill, &params, buffers, grid);
            if let Some(merge) = merge {
                merge.record(ctx, end_row);
            }
        }
        self.apply_sinks(ctx, tiles);
    }
}
