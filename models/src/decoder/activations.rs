//! Activations that layers pass to each other, on the device.

use attn_kernels::gpu::{Buf, Gpu};

use super::batch::{Batch, Dense, GroupRows};
use super::buffers::GrowBuf;
use super::limits::{HEAD_ROWS, partial_dim};
use super::options::DecoderOptions;
use super::splits::Splits;
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
    /// Output of attention, `[max_rows, num_heads * head_dim]`.
    pub(super) attended: Buf<f32>,
    /// Log-sum-exps of attention, `[max_rows, num_heads]`.
    pub(super) lse: Buf<f32>,
    /// Activations inside the MLP, `[max_rows, intermediate]`.
    pub(super) inner: Buf<f32>,
    /// Partial results of decode attention, by partition.
    pub(super) partial: GrowBuf<f32>,
    pub(super) stats: GrowBuf<[f32; 2]>,
    /// Partial results of tiles by part of their keys, `[parts, rows, num_heads * head_dim]`, and their log-sum-exps.
    pub(super) part_out: GrowBuf<f32>,
    pub(super) part_lse: GrowBuf<f32>,
    /// Logits, `[HEAD_ROWS or max_seqs, vocab]`.
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

    /// Resizes the buffers of partial results: partitions of decode rows, which grow with the contexts, and parts of
    /// tiles. `max_partitions` is the maximum number of partitions of a row, if the attention splits rows itself.
    pub(super) fn fit_partials(
        &mut self,
        gpu: &Gpu,
        config: &DecoderConfig,
        batch: &Batch,
        splits: &Splits,
        max_partitions: Option<u32>,
    ) -> Result<(), ModelError> {
        let planner = splits.planner();
        let of_group = |(index, attn_group): (usize, &GroupRows)| {
            let max = max_partitions.unwrap_or_else(|| splits.of(index, Dense::All).split.max_partitions);
            let (all, listed) = (&attn_group.all.decode, &attn_group.selected.decode);
            planner
                .outputs(all.len(), max)
                .max(planner.outputs(listed.len(), splits.max_listed(&attn_group.selected)))
        };
        let outputs = batch.attn_groups.iter().enumerate().map(of_group).max().unwrap_or(0);
        self.partial.fit(gpu, outputs * partial_dim(config) as usize)?;
        self.stats.fit(gpu, outputs)?;
        let heads = config.num_heads as usize;
        let parts = Some(splits.max_parts()).filter(|count| *count > 1).unwrap_or(0) as usize;
        self.part_lse.fit(gpu, parts * batch.rows as usize * heads)?;
        self.part_out.fit(gpu, parts * batch.rows as usize * heads * config.head_dim as usize)
    }
}
