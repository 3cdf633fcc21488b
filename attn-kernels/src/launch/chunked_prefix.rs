//! Records the attention of rows with long prefixes, chunk by chunk, with a merge of log-sum-exps after each.

use std::sync::Arc;

use crate::cast::u32_of;
use crate::gpu::{Buf, Gpu, GpuError, Pass, Pipeline};
use crate::kernel::chunked_prefix::ChunkedPrefix;
use crate::kernel::lse_merge::{self, LseMergeBuffers, LseMergeParams};
use crate::kernel::paged_prefill::{self, PagedPrefillBuffers, PagedPrefillParams, Tile};
use crate::kernel::prefix_slots::{self, PrefixSlotsBuffers, PrefixSlotsParams};
use crate::rows::{KvWord, PhysicalBlock};

/// A [`ChunkedPrefix`] on the device, uploaded once per step and used by every layer.
#[derive(Debug)]
pub struct PrefixPass {
    merge: Arc<Pipeline>,
    share: u32,
    /// Block tables of all chunks; the device fills them.
    tables: Buf<PhysicalBlock>,
    /// Tiles and lse of each chunk. Rows that do not reach a chunk keep an lse of minus infinity for it, so that a
    /// merge leaves their outputs unchanged, to the bit.
    chunks: Vec<(Buf<Tile>, u32, Buf<f32>)>,
    rest: (Buf<Tile>, u32),
    /// Maximum number of keys that a row of the causal rest attends to; 0 without such rows.
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
    pub k: &'a Buf<KvWord>,
    /// Values.
    pub v: &'a Buf<KvWord>,
    /// Block tables of the sequences.
    pub tables: &'a Buf<PhysicalBlock>,
    /// Output, `[rows, num_heads, head_dim]`.
    pub out: &'a Buf<f32>,
    /// Log-sum-exps of the output, `[rows, num_heads]`.
    pub lse: &'a Buf<f32>,
}

impl PrefixPass {
    /// Uploads `plan` for `rows` rows of `num_heads` heads of `head_dim`, and records the copy of the chunks' block tables
    /// from the tables of the sequences.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn new(
        gpu: &Gpu,
        pass: &mut Pass,
        plan: &ChunkedPrefix,
        tables: &Buf<PhysicalBlock>,
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
            let fill = gpu.pipeline(&prefix_slots::variant())?;
            for spans in plan.spans.chunks(65_535) {
                // Over blocks in place of tokens: an entry of a table is a slot of a block of size 1.
                let params = PrefixSlotsParams::new(1, spans);
                let list = gpu.upload("prefix_spans", spans)?;
                let (list, slots) = (list.bind().cast(), filled.bind().cast());
                let buffers = PrefixSlotsBuffers { spans: list, tables: tables.bind(), slots };
                pass.dispatch(&fill, &params, buffers);
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

    /// Records the attention of one layer: `prefill` over the rest and over every chunk, by rising position. The keys
    /// and tiles of `params` are set here.
    pub fn attend(
        &self,
        gpu: &Gpu,
        pass: &mut Pass,
        buffers: PrefixBuffers<'_>,
        params: PagedPrefillParams,
        prefill: &Arc<Pipeline>,
    ) {
        let PrefixBuffers { q, k, v, tables, out, lse } = buffers;
        if self.longest == 0 {
            return;
        }
        let keys = Keys { gpu, prefill, params, q, k, v };
        keys.attend(pass, tables, (&self.rest.0, self.rest.1), self.longest, (out, lse));
        let merge = LseMergeParams::new(self.rows);
        for (tiles, count, chunk_lse) in &self.chunks {
            keys.attend(pass, &self.tables, (tiles, *count), self.share, (&self.out, chunk_lse));
            let buffers = LseMergeBuffers {
                b_out: self.out.bind(),
                b_lse: chunk_lse.bind(),
                a_out: out.bind(),
                a_lse: lse.bind(),
            };
            pass.dispatch(&self.merge, &merge, buffers);
        }
    }
}

/// Arguments that all dispatches over keys share.
struct Keys<'a> {
    gpu: &'a Gpu,
    prefill: &'a Arc<Pipeline>,
    params: PagedPrefillParams,
    q: &'a Buf<f32>,
    k: &'a Buf<KvWord>,
    v: &'a Buf<KvWord>,
}

impl Keys<'_> {
    /// Records the attention of the rows of `tiles` to the first `keys` keys of their tables.
    fn attend(
        &self,
        pass: &mut Pass,
        tables: &Buf<PhysicalBlock>,
        (list, tiles): (&Buf<Tile>, u32),
        keys: u32,
        (out, lse): (&Buf<f32>, &Buf<f32>),
    ) {
        let buffers = PagedPrefillBuffers {
            q: self.q.bind(),
            k_cache: self.k.bind(),
            v_cache: self.v.bind(),
            tables: tables.bind(),
            tiles: list.bind(),
            out: out.bind(),
            lse: lse.bind(),
            selected: None,
            slopes: None,
        };
        for (first_key, num_keys) in paged_prefill::segments(0, keys - 1, self.gpu.is_cpu()) {
            let num_keys = num_keys.min(keys - first_key).next_multiple_of(8);
            let params = PagedPrefillParams { first_key, num_keys, tiles, ..self.params };
            pass.dispatch(self.prefill, &params, buffers.clone());
        }
    }
}
