//! Activations that layers hand to each other, on the device.

use attn_kernels::gpu::{Buf, Gpu};

use super::buffers::GrowBuf;
use super::head::HEAD_ROWS;
use super::inputs::{Plan, Rows, ViewRows};
use super::options::DecoderOptions;
use super::portions::{PARTIAL_BYTES, partial_dim};
use crate::matrix::SLACK;
use crate::{DecoderConfig, ModelError};

/// Buffers that every step overwrites.
#[derive(Debug)]
pub(super) struct Activations {
    /// Residual stream, `[max_rows, hidden]`.
    pub(super) residual: Buf<f32>,
    /// Normed rows, `[max_rows, hidden]`.
    pub(super) normed: Buf<f32>,
    /// Queries, keys, values, `[max_rows, (num_heads + 2 * num_kv_heads) * head_dim]`.
    pub(super) qkv: Buf<f32>,
    /// Rotated queries, `[max_rows, num_heads * head_dim]`.
    pub(super) q: Buf<f32>,
    /// Attention output, `[max_rows, num_heads * head_dim]`.
    pub(super) attended: Buf<f32>,
    /// `[max_rows, num_heads]`
    pub(super) lse: Buf<f32>,
    /// Inside the MLP, `[max_rows, intermediate]`.
    pub(super) inner: Buf<f32>,
    /// Partitions of decode attention.
    pub(super) partial: GrowBuf<f32>,
    pub(super) stats: GrowBuf<[f32; 2]>,
    /// Attention of tiles to the parts of their keys, `[parts, rows, num_heads * head_dim]`, and its log-sum-exps.
    pub(super) part_out: GrowBuf<f32>,
    pub(super) part_lse: GrowBuf<f32>,
    /// `[HEAD_ROWS or max_seqs, vocab]`
    pub(super) logits: Buf<f32>,
    pub(super) nll: Buf<f32>,
}

impl Activations {
    pub(super) fn new(
        gpu: &Gpu,
        config: &DecoderConfig,
        options: &DecoderOptions,
    ) -> Result<Self, ModelError> {
        let c = config;
        let (rows, seqs) = (options.max_rows as usize, options.max_seqs as usize);
        let (heads, kv) = (c.num_heads as usize, c.num_kv_heads as usize);
        let dim = c.head_dim as usize;
        let logits = HEAD_ROWS.max(seqs);
        // What matmuls read.
        let rows_of = |name, len: usize| gpu.buffer::<f32>(name, len + SLACK);
        Ok(Self {
            residual: rows_of("residual", rows * c.hidden_size as usize)?,
            normed: rows_of("normed", rows.max(logits) * c.hidden_size as usize)?,
            qkv: gpu.buffer("qkv", rows * (heads + 2 * kv) * dim)?,
            q: gpu.buffer("q", rows * heads * dim)?,
            attended: rows_of("attended", rows * heads * dim)?,
            lse: gpu.buffer("lse", rows * heads)?,
            inner: rows_of("inner", rows * c.intermediate_size as usize)?,
            partial: GrowBuf::new(gpu, "partial", seqs * heads * partial_dim(c) as usize)?,
            stats: GrowBuf::new(gpu, "stats", seqs * heads)?,
            part_out: GrowBuf::new(gpu, "part_out", 0)?,
            part_lse: GrowBuf::new(gpu, "part_lse", 0)?,
            logits: gpu.buffer("logits", logits * c.vocab_size as usize)?,
            nll: gpu.buffer("nll", rows + HEAD_ROWS)?,
        })
    }

    /// Makes room for the partitions of the step's decode rows, which grow with the contexts, and for the parts of its tiles; of
    /// rows with lists each has `listed` partitions at most.
    pub(super) fn fit_partials(
        &mut self,
        gpu: &Gpu,
        config: &DecoderConfig,
        plan: &Plan,
        listed: u32,
    ) -> Result<(), ModelError> {
        let heads = config.num_heads as usize;
        let bytes = heads * partial_dim(config) as usize * 4;
        let rows = heads * plan.views.iter().map(|view| partials(view, listed, bytes)).max().unwrap_or(0);
        self.partial.fit(gpu, rows * partial_dim(config) as usize)?;
        self.stats.fit(gpu, rows)?;
        let parts = plan.views.iter().flat_map(|view| [view.all.parts.count, view.whole.parts.count]).max();
        let parts = parts.filter(|count| *count > 1).unwrap_or(0) as usize;
        self.part_lse.fit(gpu, parts * plan.rows as usize * heads)?;
        self.part_out.fit(gpu, parts * plan.rows as usize * heads * config.head_dim as usize)
    }
}

/// Partials of all heads, `bytes` each, that the rows of a view leave at one time, whatever the lengths of their lists.
fn partials(view: &ViewRows, listed: u32, bytes: usize) -> usize {
    let of = |rows: &Rows, most: u32| {
        let most = most as usize;
        // As rows are cut into portions.
        (rows.decode.len() * most).min((PARTIAL_BYTES / bytes).max(16 * most))
    };
    of(&view.all, view.all.cut.max_partitions).max(of(&view.selected, listed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decoder::partitions::Cut;
    use attn_kernels::rows::DecodeRow;

    #[test]
    fn partials_of_many_rows_are_as_many_as_the_buffer_holds() {
        let of = |rows: usize| Rows {
            decode: vec![DecodeRow { len: 32_768, ..DecodeRow::default() }; rows],
            cut: Cut { max_partitions: 32, ..Cut::default() },
            longest: 32_768,
            ..Rows::default()
        };
        let view = |rows| ViewRows { all: of(rows), selected: of(rows), ..ViewRows::default() };
        assert_eq!(partials(&view(4), 64, 512), 4 * 64);
        assert_eq!(partials(&ViewRows { all: of(4), ..ViewRows::default() }, 64, 512), 4 * 32);
        // And sixteen at least.
        assert_eq!(partials(&view(1 << 20), 64, 512), PARTIAL_BYTES / 512);
        assert_eq!(partials(&view(1 << 20), 64, PARTIAL_BYTES), 16 * 64);
    }
}
