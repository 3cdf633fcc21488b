//! The indexer over compressed entries: scores those that a row may see with a few small heads, and keeps the best.

use std::sync::Arc;

use attn_kernels::gpu::{Bind, Buf, Gpu, Most, Pass, Pipeline, TopK};
use attn_kernels::kernel::KvShape;
use attn_kernels::kernel::index_logits::{IndexKeys, IndexLogitsParams};
use attn_kernels::kernel::index_logits_coop::IndexKernel;
use attn_kernels::kernel::top_k::{Output, TopKParams, Transform};

use super::places::Places;
use super::step::{KindStep, Step};
use super::{IndexWeights, kind_of};
use crate::decoder::inputs::{Plan, u32_of};
use crate::decoder::{Decoder, DecoderOptions};
use crate::kernel::index_write;
use crate::kernel::rope;
use crate::matrix::SLACK;
use crate::{CachePart, DecoderConfig, IndexerConfig, ModelError};

/// Kernels and buffers.
#[derive(Debug)]
pub(super) struct IndexState {
    config: IndexerConfig,
    /// Of the kind of entries that are chosen among.
    kind: usize,
    pub(super) keys: KvShape,
    pub(super) write: Arc<Pipeline>,
    rope: Arc<Pipeline>,
    kernel: IndexKernel,
    logits: Arc<Pipeline>,
    top_k: TopK,
    q: Buf<f32>,
    gates: Buf<f32>,
    /// Scores of a portion of rows.
    scores: Buf<f32>,
    /// Row, first entry, entries, first entry of its block table.
    key_rows: Buf<[u32; 4]>,
    /// First score, scores, entries to choose, first entry of its block table.
    top_rows: Buf<[u32; 4]>,
}

/// Bytes of scores that exist at one time, unless fewer than [`PORTION`] rows make more.
const SCORE_BYTES: usize = 64 << 20;

/// Portions are multiples of this many rows, for the alignment of bindings.
const PORTION: usize = 64;

impl IndexState {
    pub(super) fn new(
        gpu: &Gpu,
        config: &DecoderConfig,
        options: &DecoderOptions,
        places: &Places,
    ) -> Result<Option<Self>, ModelError> {
        let Some(kind) = places.kinds.iter().position(|kind| kind.compressor.indexed) else {
            return Ok(None);
        };
        let indexer = config.indexer.expect("compressors that choose entries have an indexer");
        let IndexerConfig { num_heads, head_dim, .. } = indexer;
        let (block_size, dtype) = (places.kinds[kind].block, options.kv_dtype);
        let keys = KvShape { num_kv_heads: 1, head_dim, block_size, dtype };
        let kernel = IndexKernel::new(IndexKeys::Cached(keys), options.coop(gpu));
        let rows = options.max_rows as usize;
        let buffer = |name, width: u32| gpu.buffer(name, rows * width as usize + SLACK);
        Ok(Some(Self {
            write: gpu.pipeline(&index_write::variant(&keys))?,
            rope: gpu.pipeline(&rope::variant(head_dim, true))?,
            kernel,
            logits: gpu.pipeline(&kernel.variant())?,
            top_k: TopK::new(gpu, Output::Positions(Transform::Paged))?,
            q: buffer("index_q", num_heads * head_dim)?,
            gates: buffer("index_gates", num_heads)?,
            scores: gpu.buffer("index_scores", PORTION)?,
            key_rows: gpu.buffer("index_rows", rows)?,
            top_rows: gpu.buffer("index_top_rows", rows)?,
            kind,
            keys,
            config: indexer,
        }))
    }

    /// Scores from row to row.
    fn stride(step: &KindStep) -> u32 {
        step.longest.next_multiple_of(64)
    }

    /// What bounds the rows of a step.
    fn most(&self, step: &KindStep) -> Most {
        Most { scores: step.longest, k: self.config.top_k }
    }

    /// Rows whose scores exist at one time.
    fn portion(&self, step: &KindStep) -> usize {
        let row = Self::stride(step) as usize + self.most(step).scratch();
        (SCORE_BYTES / (row * 4) / PORTION * PORTION).max(PORTION)
    }

    /// Writes the rows of a step, which all layers share.
    pub(super) fn write(&mut self, gpu: &Gpu, step: &Step) -> Result<(), ModelError> {
        let rows = &step.rows;
        let step = &step.kinds[self.kind];
        if !step.chooses() {
            return Ok(());
        }
        let (portion, stride) = (self.portion(step), Self::stride(step));
        let seen = || step.seen.iter().enumerate();
        let key_row = |(i, [_, entries, _, table]): (usize, &[u32; 4])| [rows[i][0], 0, *entries, *table];
        let top_row = |(i, [_, entries, _, table]): (usize, &[u32; 4])| {
            [u32_of(i % portion) * stride, *entries, self.config.top_k, *table]
        };
        gpu.write(&self.key_rows, 0, &seen().map(key_row).collect::<Vec<_>>());
        gpu.write(&self.top_rows, 0, &seen().map(top_row).collect::<Vec<_>>());
        let together = portion.min(rows.len());
        let scores = together * stride as usize;
        if self.scores.len() < scores {
            self.scores = gpu.buffer("index_scores", scores.next_power_of_two())?;
            gpu.forget_bind_groups();
        }
        self.top_k.reserve(gpu, u32_of(together), self.most(step))?;
        Ok(())
    }
}

impl Decoder {
    /// Slots of the entries that the rows of the layer at hand chose, `[rows, stride]`, with the stride; `None` where all
    /// rows attend all that they see.
    pub(in crate::decoder) fn chosen_slots(&self, plan: &Plan) -> Option<(&Buf<u32>, usize)> {
        let state = self.compressed.as_ref()?;
        let kind = state.index.as_ref()?.kind;
        let step = kind_of(plan, kind);
        step.chooses().then(|| (state.lists.kinds[kind].seen(), step.stride as usize))
    }

    /// The entries at `slots`, which row number `row` chose, ascending.
    pub(in crate::decoder) fn entries_at(&self, plan: &Plan, row: usize, slots: &[u32]) -> Vec<u32> {
        let indexer = self.compressed().index.as_ref().expect("rows that chose entries have an indexer");
        let (step, block) = (kind_of(plan, indexer.kind), indexer.keys.block_size);
        let [_, keys, in_window, _] = step.rows[row];
        let table = &plan.tables[step.seen[row][3] as usize..];
        let entry = |slot: &u32| {
            let index =
                table.iter().position(|id| *id == slot / block).expect("a slot of the row's own blocks");
            u32_of(index) * block + slot % block
        };
        let mut entries: Vec<u32> = slots[..(keys - in_window) as usize].iter().map(entry).collect();
        entries.sort_unstable();
        entries
    }

    /// Leaves the slots of the entries that each row attends, unless all rows attend all that they see.
    pub(super) fn choose_entries(
        &self,
        pass: &mut Pass,
        index: usize,
        weights: &IndexWeights,
        x: &Buf<f32>,
        plan: &Plan,
    ) -> Result<(), ModelError> {
        let state = self.compressed();
        let indexer = state.index.as_ref().expect("a layer that chooses entries has buffers for it");
        let step = kind_of(plan, indexer.kind);
        if !step.chooses() {
            return Ok(());
        }
        let IndexerConfig { num_heads, head_dim, .. } = indexer.config;
        let (rows, width) = (plan.rows, num_heads * head_dim);
        weights.q.multiply(&self.kernels, pass, &self.exactly(plan, &state.q_latent, &indexer.q, width))?;
        let first = head_dim - state.config.rope.rotary_dims;
        let heads = [num_heads, width, first];
        self.turn_by(pass, &indexer.rope, self.compress_angles(false), heads, rows, &indexer.q);
        weights.gates.multiply(&self.kernels, pass, &self.exactly(plan, x, &indexer.gates, num_heads))?;
        self.top_entries(pass, index, indexer, step);
        Ok(())
    }

    /// Scores entries and keeps the best of each row, portion by portion.
    fn top_entries(&self, pass: &mut Pass, index: usize, indexer: &IndexState, step: &KindStep) {
        let state = self.compressed();
        let (portion, logit_stride) = (indexer.portion(step), IndexState::stride(step));
        let (total, out_stride) = (step.seen.len(), step.stride);
        for start in (0..total).step_by(portion) {
            let rows = u32_of(portion.min(total - start));
            let from = |buffer: &Buf<[u32; 4]>| Bind::at(buffer.raw(), start as u64 * 16);
            let (num_heads, neg_inf) = (indexer.config.num_heads, f32::NEG_INFINITY);
            let params = IndexLogitsParams { num_heads, logit_stride, neg_inf, pad0: 0 };
            let bindings: [Bind; 6] = [
                (&indexer.q).into(),
                self.kv.buffer(index, CachePart::IndexKeys).into(),
                (&self.inputs.tables).into(),
                from(&indexer.key_rows),
                (&indexer.gates).into(),
                (&indexer.scores).into(),
            ];
            pass.dispatch(&indexer.logits, &params, &bindings, indexer.kernel.grid(&params, rows));
            let params = TopKParams { rows, out_stride, copies: 1, page_size: indexer.keys.block_size };
            let slots = state.lists.kinds[indexer.kind].seen();
            let bindings: [Bind; 4] = [
                (&indexer.scores).into(),
                from(&indexer.top_rows),
                (&self.inputs.tables).into(),
                Bind::at(slots.raw(), start as u64 * u64::from(out_stride) * 4),
            ];
            indexer.top_k.record(pass, &params, indexer.most(step), bindings);
        }
    }
}
