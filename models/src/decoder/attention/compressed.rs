//! Attention to a window of tokens and to compressed entries under one softmax (DeepSeek V4). One vector per token or entry is
//! key and value of all heads. The output is rotated back, so that it depends on distances alone.

mod caches;
mod entries;
mod rows;
mod step;

use std::sync::Arc;

use attn_kernels::gpu::{Buf, Gpu, Pipeline};
use attn_kernels::kernel::attention::Attention;
use attn_kernels::kernel::latent_write::{self, LatentWriteBuffers, LatentWriteParams};
use attn_kernels::kernel::mla_decode;
use attn_kernels::kernel::mla_decode_coop::MlaKernel;

pub(in crate::decoder) use self::entries::CompressorWeights;

use self::caches::{CompressedCaches, LayerCaches};
use self::entries::{EntryState, StateCache};
use self::rows::SlotRows;
use self::step::{CompressedStep, StepContext};
use super::index::{IndexOf, IndexQueries, IndexScorer, IndexSelection};
use crate::batch::Slice;
use crate::cast::u32_of;
use crate::decoder::batch::Batch;
use crate::decoder::choices::{ChoiceBuffer, ChoiceKind};
use crate::decoder::kernels::LoadContext;
use crate::decoder::keys::Keys;
use crate::decoder::ops::{Ctx, HeadSlices, Rotation};
use crate::decoder::portions::{RowTask, attend_rows};
use crate::decoder::rope_cos_sin::RopeCosSin;
use crate::kernel::rope;
use crate::matrix::{Matrix, SLACK, Vectors};
use crate::{CachePart, CompressedConfig, DecoderConfig, ModelError, Pairing};
use attn_kernels::rows::{KeyRow, KvWord, SlotRow, Span};

/// Weights of the compressed attention of a layer.
#[derive(Clone, Debug)]
pub(in crate::decoder) struct CompressedWeights {
    pub(in crate::decoder) q_a: Matrix,
    pub(in crate::decoder) q_a_norm: Buf<f32>,
    pub(in crate::decoder) q_b: Matrix,
    pub(in crate::decoder) kv: Matrix,
    pub(in crate::decoder) kv_norm: Buf<f32>,
    /// One matrix for each group of output heads.
    pub(in crate::decoder) o_a: Matrix,
    pub(in crate::decoder) o_b: Matrix,
    /// Sink logits, `[num_heads]`.
    pub(in crate::decoder) sinks: Option<Buf<f32>>,
    pub(in crate::decoder) entries: Option<EntryWeights>,
}

/// Weights of the entries of a layer.
#[derive(Clone, Debug)]
pub(in crate::decoder) struct EntryWeights {
    pub(in crate::decoder) compressor: CompressorWeights,
    /// Indexer that selects the compressed entries that queries attend to, if the layer has one.
    pub(in crate::decoder) indexer: Option<IndexWeights>,
}

/// Weights of an indexer over entries.
#[derive(Clone, Debug)]
pub(in crate::decoder) struct IndexWeights {
    pub(in crate::decoder) compressor: CompressorWeights,
    pub(in crate::decoder) queries: IndexQueries,
}

/// Weights, kernels and buffers of compressed attention.
#[derive(Debug)]
pub(in crate::decoder) struct CompressedAttention {
    layers: Arc<[CompressedWeights]>,
    config: CompressedConfig,
    caches: CompressedCaches,
    cos_sin: RopeCosSin,
    step: CompressedStep,
    entries: EntryState,
    index: Option<EntryIndex>,
    rope: Arc<Pipeline>,
    write: Arc<Pipeline>,
    attend: Arc<Pipeline>,
    reduce: Arc<Pipeline>,
    /// Factors and biases of the norm of query heads.
    plain_norm: Buf<f32>,
    /// Latents of queries, `[max_rows, q_rank]`.
    q_latent: Buf<f32>,
    /// Vectors that are key and value of each row, `[max_rows, head_dim]`.
    kv: Buf<f32>,
    /// Activations between the two output projections, `[max_rows, groups * rank]`.
    grouped: Buf<f32>,
}

/// The indexer over entries.
#[derive(Debug)]
struct EntryIndex {
    scorer: IndexScorer,
    /// Index of the kind of entries that the indexer selects among.
    kind: usize,
}

impl EntryIndex {
    fn new(load: &LoadContext<'_>, caches: &CompressedCaches) -> Result<Option<Self>, ModelError> {
        let LoadContext { gpu, config, options, .. } = *load;
        let kind = caches.kinds.iter().position(|kind| kind.compressor.indexed);
        let Some((kind, indexer)) = kind.zip(config.indexer) else { return Ok(None) };
        let keys = options.kv().of_index().keys(indexer.head_dim, caches.kinds[kind].block);
        let scorer = IndexScorer::new(gpu, options, indexer, keys, IndexOf::Entries)?;
        Ok(Some(Self { scorer, kind }))
    }

    /// Plans the rows of a step, which all layers share.
    fn plan(&mut self, step: &CompressedStep) {
        let of_kind = &step.kinds[self.kind];
        let key_row = |(row, seen): (&SlotRow, &Span)| KeyRow {
            row: row.row,
            first_key: 0,
            end: seen.len,
            table: seen.table,
        };
        let rows = if of_kind.selects() { &step.rows[..] } else { &[] };
        self.scorer.plan(rows.iter().zip(of_kind.spans()).map(key_row), of_kind.longest);
    }
}

impl CompressedAttention {
    pub(super) fn new(
        load: &LoadContext<'_>,
        compressed: CompressedConfig,
        layers: &Arc<[CompressedWeights]>,
    ) -> Result<Self, ModelError> {
        let LoadContext { gpu, config, options, kv, attn_groups } = *load;
        let shape = options.kv().vectors(config, &compressed);
        let kernel = MlaKernel::new(&shape, config.num_heads, &gpu.profile().rounded(options.uses_coop(gpu)));
        let caches = CompressedCaches::new(config, kv.plan());
        let attention = Attention { sinks: config.sinks, ..Attention::default() };
        let rows = options.max_rows as usize;
        let buffer = |name, width: u32| gpu.buffer(name, rows * width as usize + SLACK);
        Ok(Self {
            layers: Arc::clone(layers),
            step: CompressedStep::new(load, &caches, attn_groups.all.len())?,
            entries: EntryState::new(gpu, config, options, &caches)?,
            index: EntryIndex::new(load, &caches)?,
            rope: gpu.pipeline(&rope::variant(config.head_dim, Pairing::Interleaved))?,
            write: gpu.pipeline(&latent_write::variant(&shape))?,
            attend: gpu.pipeline(&kernel.variant_of_two())?,
            reduce: gpu.pipeline(&mla_decode::reduce_variant(gpu.profile(), &shape, &attention))?,
            plain_norm: gpu.upload("plain_norm", &plain_norm(config))?,
            q_latent: buffer("q_latent", compressed.q_rank)?,
            kv: buffer("kv", config.head_dim)?,
            grouped: buffer("grouped", compressed.output_groups * compressed.output_rank)?,
            caches,
            cos_sin: RopeCosSin::new(&compressed.rope),
            config: compressed,
        })
    }

    /// Plans a step.
    pub(super) fn plan(&mut self, config: &DecoderConfig, slices: &[Slice<'_>], batch: &Batch) {
        let Self { caches, cos_sin, step, index, .. } = self;
        step.plan(&StepContext { config, caches, cos_sin }, slices, batch);
        index.iter_mut().for_each(|index| index.plan(step));
    }

    /// Returns the maximum number of partitions of a row.
    pub(super) fn max_partitions(&self) -> u32 {
        self.step.split.max_partitions
    }

    /// Uploads the lists of a step.
    pub(super) fn upload(&mut self, gpu: &Gpu) -> Result<(), ModelError> {
        self.step.upload(gpu)?;
        self.index.as_mut().map_or(Ok(()), |index| index.scorer.upload(gpu))
    }

    /// Records the slots that rows attend in all layers.
    pub(super) fn begin(&self, ctx: &mut Ctx<'_>) {
        self.step.record(ctx, &self.caches);
    }

    /// Returns the entries that a layer's indexer selected, if it has one and some row sees more than it may attend.
    pub(super) fn choice(&self, layer: usize) -> Option<ChoiceBuffer<'_>> {
        self.layers[layer].entries.as_ref()?.indexer.as_ref()?;
        let kind = self.index.as_ref()?.kind;
        let step = &self.step.kinds[kind];
        let (of, stride) = (ChoiceKind::Entries, step.stride as usize);
        step.selects().then(|| ChoiceBuffer { kind: of, buffer: step.seen(), stride })
    }

    /// Returns the entries at `slots`, which the indexer selected for row number `row`, ascending.
    pub(super) fn entries_at(&self, batch: &Batch, row: usize, slots: &[u32]) -> Vec<u32> {
        let Some(indexer) = &self.index else { return Vec::new() };
        let (step, block) = (&self.step.kinds[indexer.kind], self.caches.kinds[indexer.kind].block);
        let SlotRow { keys, in_window, .. } = step.rows[row];
        let table = &batch.tables[step.spans()[row].table as usize..];
        let entry = |slot: &u32| {
            let index =
                table.iter().position(|id| id.0 == slot / block).expect("a slot of the row's own blocks");
            u32_of(index) * block + slot % block
        };
        let mut entries: Vec<u32> = slots[..(keys - in_window) as usize].iter().map(entry).collect();
        entries.sort_unstable();
        entries
    }

    /// Records the norm of the layer's input and its attention, and adds the output to the residual.
    pub(super) fn record(
        &self,
        ctx: &mut Ctx<'_>,
        layer: usize,
        norm: Option<&Buf<f32>>,
    ) -> Result<(), ModelError> {
        let (weights, act) = (&self.layers[layer], ctx.act);
        let (x, _) = ctx.normed(norm, false);
        self.queries(ctx, layer, x)?;
        self.window_keys(ctx, layer, x)?;
        let caches = self.caches.layers[layer];
        if let Some((entries, caches)) = weights.entries.as_ref().zip(caches) {
            self.new_entries(ctx, layer, entries, caches, x)?;
        }
        self.attend(ctx, layer, caches);

        let (heads, dim) = (ctx.config.num_heads, ctx.config.head_dim);
        let rotation = Rotation { back: true, ..self.rotation(ctx, layer, heads, heads * dim) };
        ctx.rotate(&self.rope, rotation, &act.attended);
        let CompressedConfig { output_groups, output_rank, .. } = self.config;
        let vectors = Vectors {
            x: (&act.attended).into(),
            x_stride: heads * dim / output_groups,
            y: (&self.grouped).into(),
            y_stride: output_rank,
            y_offset: 0,
        };
        ctx.matmul_each(&weights.o_a, &vectors)?;
        ctx.add_product(&weights.o_b, &self.grouped, ctx.block_out, ctx.config.hidden_size)
    }

    fn queries(&self, ctx: &mut Ctx<'_>, layer: usize, x: &Buf<f32>) -> Result<(), ModelError> {
        let (weights, q, eps) = (&self.layers[layer], &ctx.act.q, ctx.config.rms_norm_eps);
        let (heads, width, rank) = (ctx.config.num_heads, ctx.config.head_dim, self.config.q_rank);
        // The indexer reads the latent too.
        ctx.exact_product(&weights.q_a, x, &self.q_latent, rank)?;
        ctx.norm_head_slices(HeadSlices::of(1, rank), eps, &weights.q_a_norm, &self.q_latent);
        ctx.store_product(&weights.q_b, &self.q_latent, q, heads * width)?;
        ctx.norm_head_slices(HeadSlices::of(heads, width), eps, &self.plain_norm, q);
        ctx.rotate(&self.rope, self.rotation(ctx, layer, heads, heads * width), q);
        Ok(())
    }

    /// Records the keys of the step's tokens, which are their values too, and writes them to the window's cache.
    fn window_keys(&self, ctx: &mut Ctx<'_>, layer: usize, x: &Buf<f32>) -> Result<(), ModelError> {
        let (weights, width, eps) = (&self.layers[layer], ctx.config.head_dim, ctx.config.rms_norm_eps);
        ctx.store_product(&weights.kv, x, &self.kv, width)?;
        ctx.norm_head_slices(HeadSlices::of(1, width), eps, &weights.kv_norm, &self.kv);
        ctx.rotate(&self.rope, self.rotation(ctx, layer, 1, width), &self.kv);
        let cache = ctx.kv.buffer(layer, CachePart::Latent);
        self.write_vectors(ctx, &self.kv, ctx.group_rows(layer).slots.on_device(), cache, ctx.rows());
        Ok(())
    }

    /// Records the entries that the step completes, and the selection of entries for each row.
    fn new_entries(
        &self,
        ctx: &mut Ctx<'_>,
        layer: usize,
        weights: &EntryWeights,
        caches: LayerCaches,
        x: &Buf<f32>,
    ) -> Result<(), ModelError> {
        let LayerCaches { kind, states: group, index_states } = caches;
        let slots = self.step.kinds[kind].slots.on_device();
        let cache = StateCache { layer, part: CachePart::States, kind, group, dim: ctx.config.head_dim };
        let count = self.compress(ctx, &weights.compressor, cache, x)?;
        let entries = ctx.kv.buffer(layer, CachePart::Entries);
        self.write_vectors(ctx, &self.entries.entries, slots, entries, count);
        let Some((weights, indexer)) = weights.indexer.as_ref().zip(self.index.as_ref()) else {
            return Ok(());
        };
        let dim = indexer.scorer.config.head_dim;
        let cache = StateCache { layer, part: CachePart::IndexStates, kind, group: index_states, dim };
        let rows = self.compress(ctx, &weights.compressor, cache, x)?;
        if rows > 0 {
            indexer.scorer.append(ctx, layer, &self.entries.entries, slots, rows);
        }
        let step = &self.step.kinds[indexer.kind];
        if !step.selects() {
            return Ok(());
        }
        let choice = IndexSelection {
            layer,
            weights: &weights.queries,
            q_latent: &self.q_latent,
            x,
            rotation: self.entry_rotation(&indexer.scorer),
            to: step.seen(),
            stride: step.stride,
        };
        indexer.scorer.select(ctx, &choice)
    }

    /// Records the write of `rows` vectors of `head_dim` elements to their slots.
    fn write_vectors(
        &self,
        ctx: &mut Ctx<'_>,
        x: &Buf<f32>,
        slots: &Buf<i32>,
        cache: &Buf<KvWord>,
        rows: u32,
    ) {
        if rows > 0 {
            let width = ctx.config.head_dim;
            let params = LatentWriteParams { rows, row_stride: width, latent_start: 0, rope_start: width };
            let buffers = LatentWriteBuffers { kv: x.bind(), slots: slots.bind(), latents: cache.bind() };
            ctx.pass.dispatch(&self.write, &params, buffers);
        }
    }

    /// Records the attention of all rows, one by one.
    fn attend(&self, ctx: &mut Ctx<'_>, layer: usize, caches: Option<LayerCaches>) {
        let task = RowTask {
            rows: &ctx.group_rows(layer).all.decode,
            max_keys: u32::MAX,
            max_partitions: self.step.split.max_partitions,
            keys: Keys::Device,
        };
        attend_rows(ctx, &task, &SlotRows { compressed: self, layer, caches });
    }

    /// Returns the rotation of the last dimensions of a layer's heads.
    fn rotation<'a>(&'a self, ctx: &Ctx<'a>, layer: usize, heads: u32, stride: u32) -> Rotation<'a> {
        let of_tokens = ctx.rotation(heads, stride, 0);
        let (cos_sin, pairs) = match self.caches.layers[layer] {
            Some(_) => (self.step.cos_sin.on_device(), self.config.rope.rotary_dims / 2),
            None => (of_tokens.cos_sin, of_tokens.pairs),
        };
        Rotation { cos_sin, pairs, first: ctx.config.head_dim - 2 * pairs, ..of_tokens }
    }

    /// Returns the rotation of the queries of an indexer over entries.
    fn entry_rotation(&self, scorer: &IndexScorer) -> Rotation<'_> {
        let (heads, stride, dims) = (scorer.config.num_heads, scorer.width(), self.config.rope.rotary_dims);
        let first = scorer.config.head_dim - dims;
        Rotation {
            cos_sin: self.step.cos_sin.on_device(),
            pairs: dims / 2,
            back: false,
            heads,
            stride,
            first,
        }
    }
}

/// Returns the factors and biases of an RMS norm of heads that has no weights.
pub(in crate::decoder) fn plain_norm(config: &DecoderConfig) -> Vec<f32> {
    let width = config.head_dim as usize;
    [1.0, 0.0].into_iter().flat_map(|value| std::iter::repeat_n(value, width)).collect()
}
