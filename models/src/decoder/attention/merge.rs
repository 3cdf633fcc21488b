//! Merge of partial results, whose keys came to the device in parts.

use std::ops::Range;
use std::sync::Arc;

use attn_kernels::gpu::{Buf, Gpu, Pipeline};
use attn_kernels::kernel::lse_merge::{self, LseMergeBuffers, LseMergeParams};
use attn_kernels::kernel::paged_prefill::Tile;

use crate::decoder::ops::Ctx;
use crate::decoder::options::DecoderOptions;
use crate::{DecoderConfig, ModelError};

/// Merge of a part's output with the output of earlier parts. Prefill with cooperative matrices needs the merge;
/// without them, the kernel itself continues from the earlier output.
#[derive(Debug)]
pub(super) struct Merge {
    pipeline: Arc<Pipeline>,
    /// Output of one part, `[max_rows, num_heads * head_dim]`.
    out: Buf<f32>,
    /// Log-sum-exp of one part, `[max_rows, num_heads]`.
    lse: Buf<f32>,
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
            out: gpu.buffer("key_part_out", heads * config.head_dim as usize)?,
            lse: gpu.buffer("key_part_lse", heads)?,
        })
    }

    /// Returns the output and log-sum-exp of one part.
    pub(super) fn part(&self) -> [&Buf<f32>; 2] {
        [&self.out, &self.lse]
    }

    /// Records the merge of a part into the rows of `tiles`.
    pub(super) fn record(&self, ctx: &mut Ctx<'_>, tiles: &[Tile]) {
        let (act, heads) = (ctx.act, ctx.config.num_heads);
        for rows in contiguous_rows(tiles) {
            let first_row = rows.start * heads;
            let params = LseMergeParams { first_row, ..LseMergeParams::new(rows.end * heads - first_row) };
            let buffers = LseMergeBuffers {
                b_out: self.out.bind(),
                b_lse: self.lse.bind(),
                a_out: act.attended.bind(),
                a_lse: act.lse.bind(),
            };
            ctx.pass.dispatch(&self.pipeline, &params, buffers);
        }
    }
}

/// Returns the ranges of consecutive rows of tiles.
pub(super) fn contiguous_rows(tiles: &[Tile]) -> impl Iterator<Item = Range<u32>> {
    let end = |tile: &Tile| tile.row + tile.rows;
    let contiguous_rows = tiles.chunk_by(move |a, b| end(a) == b.row);
    contiguous_rows.map(move |run| run[0].row..run.last().map_or(run[0].row, end))
}
