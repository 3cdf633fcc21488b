//! Records the attention of rows behind long prefixes: chunk by chunk, merged by log-sum-exp.

use std::sync::Arc;

use super::{Bind, Buf, Gpu, GpuError, Pass, Pipeline};
use crate::kernel::chunked_prefix::ChunkedPrefix;
use crate::kernel::lse_merge::{self, LseMergeParams};
use crate::kernel::paged_prefill::{self, PagedPrefillParams, Tile};
use crate::kernel::prefix_slots::{self, PrefixSlotsParams};

/// A [`ChunkedPrefix`] on the device: uploaded once a step, used by every layer.
#[derive(Debug)]
pub struct PrefixPass {
    merge: Arc<Pipeline>,
    share: u32,
    /// Block tables of all chunks; the device fills them.
    tables: Buf<u32>,
    /// Tiles and lse of each chunk. Rows that do not reach a chunk keep an lse of minus infinity there, so a merge leaves
    /// them as they are, to the bit.
    chunks: Vec<(Buf<Tile>, u32, Buf<f32>)>,
    rest: (Buf<Tile>, u32),
    /// Positions of the rest.
    longest: u32,
    /// Output of one chunk.
    out: Buf<f32>,
    rows: u32,
}

/// Buffers of one layer, as `paged_prefill` binds them.
#[derive(Clone, Copy, Debug)]
pub struct PrefixBuffers<'a> {
    /// Queries.
    pub q: &'a Buf<f32>,
    /// Keys.
    pub k: &'a Buf<u32>,
    /// Values.
    pub v: &'a Buf<u32>,
    /// Block tables of the sequences.
    pub tables: &'a Buf<u32>,
    /// Output, `[rows, num_heads, head_dim]`.
    pub out: &'a Buf<f32>,
    /// `[rows, num_heads]`
    pub lse: &'a Buf<f32>,
}

impl PrefixPass {
    /// Uploads `plan` for `rows` rows of `num_heads` heads of `head_dim`, and records the filling of the chunks' block
    /// tables from those of the sequences.
    ///
    /// # Errors
    /// What the device reports.
    pub fn new(
        gpu: &Gpu,
        pass: &mut Pass,
        plan: &ChunkedPrefix,
        tables: &Buf<u32>,
        [rows, num_heads, head_dim]: [u32; 3],
    ) -> Result<Self, GpuError> {
        let upload = |tiles: &[Tile]| -> Result<(Buf<Tile>, u32), GpuError> {
            Ok((gpu.upload("prefix_tiles", tiles)?, u32_of(tiles.len())))
        };
        let heads = rows * num_heads;
        let unreached = vec![f32::NEG_INFINITY; heads as usize];
        let chunk = |tiles: &Vec<Tile>| {
            let (buf, count) = upload(tiles)?;
            Ok((buf, count, gpu.upload("prefix_lse", &unreached)?))
        };
        let filled = gpu.buffer("prefix_tables", plan.entries.max(1) as usize)?;
        if !plan.spans.is_empty() {
            // Over blocks in place of tokens: an entry of a table is a slot of a block of size 1.
            let params = PrefixSlotsParams { block_size: 1, pad0: 0, pad1: 0, pad2: 0 };
            let fill = gpu.pipeline(&prefix_slots::variant())?;
            for spans in plan.spans.chunks(65_535) {
                let list = gpu.upload("prefix_spans", spans)?;
                let bindings = [(&list).into(), tables.into(), (&filled).into()];
                pass.dispatch(&fill, &params, &bindings, prefix_slots::grid(spans));
            }
        }
        Ok(Self {
            merge: gpu.pipeline(&lse_merge::variant(head_dim))?,
            share: plan.share,
            tables: filled,
            chunks: plan.chunks.iter().map(chunk).collect::<Result<_, GpuError>>()?,
            rest: upload(&plan.rest)?,
            longest: plan.rest.iter().map(|tile| tile.position + tile.rows).max().unwrap_or(0),
            out: gpu.buffer("prefix_out", (heads * head_dim).max(1) as usize)?,
            rows: heads,
        })
    }

    /// Records the attention of one layer: `prefill` with `grid` over the rest and over every chunk, by rising position.
    /// Of `params` the keys are set here.
    pub fn attend(
        &self,
        gpu: &Gpu,
        pass: &mut Pass,
        buffers: PrefixBuffers<'_>,
        params: PagedPrefillParams,
        (prefill, grid): (&Arc<Pipeline>, &dyn Fn(u32) -> [u32; 3]),
    ) {
        let PrefixBuffers { q, k, v, tables, out, lse } = buffers;
        if self.longest == 0 {
            return;
        }
        let keys = Keys { gpu, prefill, grid, params, q, k, v };
        keys.attend(pass, tables, (&self.rest.0, self.rest.1), self.longest, (out, lse));
        let merge = LseMergeParams { rows: self.rows, neg_inf: f32::NEG_INFINITY, pad0: 0, pad1: 0 };
        for (tiles, count, chunk_lse) in &self.chunks {
            keys.attend(pass, &self.tables, (tiles, *count), self.share, (&self.out, chunk_lse));
            let bindings = [(&self.out).into(), chunk_lse.into(), out.into(), lse.into()];
            pass.dispatch(&self.merge, &merge, &bindings, lse_merge::grid(self.rows));
        }
    }
}

/// What all dispatches over keys have in common.
struct Keys<'a> {
    gpu: &'a Gpu,
    prefill: &'a Arc<Pipeline>,
    grid: &'a dyn Fn(u32) -> [u32; 3],
    params: PagedPrefillParams,
    q: &'a Buf<f32>,
    k: &'a Buf<u32>,
    v: &'a Buf<u32>,
}

impl Keys<'_> {
    /// The rows of `tiles` over the first `keys` keys of their tables.
    fn attend(
        &self,
        pass: &mut Pass,
        tables: &Buf<u32>,
        (tiles, count): (&Buf<Tile>, u32),
        keys: u32,
        (out, lse): (&Buf<f32>, &Buf<f32>),
    ) {
        let bindings: [Bind; 7] = [
            self.q.into(),
            self.k.into(),
            self.v.into(),
            tables.into(),
            tiles.into(),
            out.into(),
            lse.into(),
        ];
        for (first_key, num_keys) in paged_prefill::segments(0, keys - 1, self.gpu.is_cpu()) {
            let num_keys = num_keys.min(keys - first_key).next_multiple_of(8);
            let params = PagedPrefillParams { first_key, num_keys, ..self.params };
            pass.dispatch(self.prefill, &params, &bindings, (self.grid)(count));
        }
    }
}

fn u32_of(n: usize) -> u32 {
    u32::try_from(n).expect("lists of a step fit in 32 bits")
}
