//! Multi-head latent attention (MLA) in its absorbed form: the key projection is applied to queries, which are then multiplied
//! with the cached latents; the value projection is applied to the output. An indexer may first select the tokens of each query
//! (DeepSeek Sparse Attention).

use std::sync::Arc;

use attn_kernels::gpu::{Bind, Buf, Gpu, Pipeline};
use attn_kernels::kernel::attention::{Attention, Context};
use attn_kernels::kernel::latent_write::{self, LatentWriteBuffers, LatentWriteParams};
use attn_kernels::kernel::mla_decode::{self, LatentShape, MlaDecodeBuffers, MlaDecodeParams};
use attn_kernels::kernel::mla_decode_coop::MlaKernel;
use attn_kernels::kernel::paged_reduce::{PagedReduceBuffers, PagedReduceParams};
use attn_kernels::split::SplitPlan;

use super::indexer::{IndexerState, IndexerWeights};
use crate::cast::u32_of;
use crate::decoder::batch::{Batch, Dense};
use crate::decoder::choices::{ChoiceBuffer, ChoiceKind};
use crate::decoder::kernels::LoadContext;
use crate::decoder::keys::{Keys, RingKeys, Stream};
use crate::decoder::ops::{Ctx, HeadSlices};
use crate::decoder::portions::{Portion, RowKernel, RowTask, attend_rows, ring_schedule};
use crate::decoder::ring_schedule::KeyRange;
use crate::decoder::ring_schedule::run_schedule;
use crate::kernel::rope;
use crate::matrix::{Matrix, SLACK, Vectors};
use crate::{LatentConfig, ModelError};

/// Weights of a layer.
#[derive(Clone, Debug)]
pub(in crate::decoder) struct LatentWeights {
    pub(in crate::decoder) queries: LatentQueries,
    pub(in crate::decoder) kv_a: Matrix,
    pub(in crate::decoder) kv_a_norm: Buf<f32>,
    /// Key projection of each head, `[kv_rank + rope, nope + rope]`, which keeps the rotated part.
    pub(in crate::decoder) keys: Matrix,
    /// Value projection of each head, `[value, kv_rank]`.
    pub(in crate::decoder) values: Matrix,
    pub(in crate::decoder) indexer: Option<IndexerWeights>,
    pub(in crate::decoder) o: Matrix,
}

/// Projection of the residual stream to queries.
#[derive(Clone, Debug)]
pub(in crate::decoder) enum LatentQueries {
    /// One matrix.
    Direct(Matrix),
    /// Two matrices, with a latent and its norm in between.
    OfLatent {
        /// Width of the latent.
        rank: u32,
        /// Matrix to the latent.
        a: Matrix,
        /// Norm of the latent.
        norm: Buf<f32>,
        /// Matrix from the latent to queries.
        b: Matrix,
    },
}

/// Weights, kernels and buffers.
#[derive(Debug)]
pub(in crate::decoder) struct LatentAttention {
    layers: Arc<[LatentWeights]>,
    config: LatentConfig,
    rope_q: Arc<Pipeline>,
    rope_k: Arc<Pipeline>,
    write: Arc<Pipeline>,
    /// Kernels for attention to all tokens.
    all: LatentKernels,
    /// Kernels for attention to the tokens that the indexer selected.
    selected: LatentKernels,
    /// Latents of queries, `[max_rows, q_rank]`, empty if queries have no latent.
    q_latent: Buf<f32>,
    /// Queries, `[max_rows, num_heads, nope + rope]`.
    q: Buf<f32>,
    /// Queries after the key projection, `[max_rows, num_heads, kv_rank + rope]`.
    absorbed: Buf<f32>,
    /// Latents of keys and values with the rotated part, `[max_rows, kv_rank + rope]`.
    kv: Buf<f32>,
    /// Weighted sums of latents, `[max_rows, num_heads, kv_rank]`.
    weighed: Buf<f32>,
    /// Attention output after the value projection, `[max_rows, num_heads, value]`.
    out: Buf<f32>,
    indexer: Option<IndexerState>,
}

#[derive(Debug)]
struct LatentKernels {
    attend: Arc<Pipeline>,
    reduce: Arc<Pipeline>,
}

/// Epsilon of the norms of latents; no configuration sets it.
const EPS: f32 = 1e-6;

impl LatentAttention {
    pub(super) fn new(
        load: &LoadContext<'_>,
        latent: LatentConfig,
        layers: &Arc<[LatentWeights]>,
    ) -> Result<Self, ModelError> {
        let LoadContext { gpu, config, options, kv, .. } = *load;
        let shape = LatentShape {
            latent: latent.kv_rank,
            rope: latent.rope_dim,
            block_size: kv.plan().options.block_size,
            dtype: options.kv_dtype,
            plain: 0,
        };
        let kernel = MlaKernel::new(&shape, config.num_heads, &gpu.profile().rounded(options.uses_coop(gpu)));
        let kind = |context| {
            let attention = Attention { context, ..Attention::default() };
            let attend = gpu.pipeline(&kernel.variant(&attention))?;
            let reduce = gpu.pipeline(&mla_decode::reduce_variant(gpu.profile(), &shape, &attention))?;
            Ok::<_, ModelError>(LatentKernels { attend, reduce })
        };
        let rows = options.max_rows as usize;
        let buffer = |name, width: u32| gpu.buffer(name, rows * width as usize + SLACK);
        let heads = config.num_heads;
        let head_dim = latent.nope_dim + latent.rope_dim;
        Ok(Self {
            layers: Arc::clone(layers),
            rope_q: gpu.pipeline(&rope::variant(head_dim, config.rope.pairing))?,
            rope_k: gpu.pipeline(&rope::variant(latent.cached(), config.rope.pairing))?,
            write: gpu.pipeline(&latent_write::variant(&shape))?,
            all: kind(Context::Full)?,
            selected: kind(Context::Tokens)?,
            q_latent: buffer("q_latent", latent.q_rank.unwrap_or(0))?,
            q: buffer("latent_q", heads * head_dim)?,
            absorbed: buffer("absorbed", heads * latent.cached())?,
            kv: buffer("latent_kv", latent.cached())?,
            weighed: buffer("weighed", heads * latent.kv_rank)?,
            out: buffer("latent_out", heads * latent.value_dim)?,
            indexer: match config.indexer {
                Some(indexer) => Some(IndexerState::new(gpu, config, options, indexer)?),
                None => None,
            },
            config: latent,
        })
    }

    /// Plans the rows of the indexer.
    pub(super) fn plan(&mut self, batch: &Batch) {
        self.indexer.iter_mut().for_each(|indexer| indexer.plan(batch));
    }

    /// Uploads the lists of a step.
    pub(super) fn upload(&mut self, gpu: &Gpu) -> Result<(), ModelError> {
        self.indexer.as_mut().map_or(Ok(()), |indexer| indexer.upload(gpu))
    }

    /// Returns the tokens that the indexer selected in the current layer, if some row sees more than it may attend.
    pub(super) fn choice(&self, batch: &Batch) -> Option<ChoiceBuffer<'_>> {
        let indexer = self.indexer.as_ref().filter(|indexer| indexer.selects(batch))?;
        let stride = 1 + indexer.longest_list(batch) as usize;
        Some(ChoiceBuffer { kind: ChoiceKind::Tokens, buffer: indexer.lists(), stride })
    }

    /// Records the norm of the layer's input and its attention, and adds the output to the residual.
    pub(super) fn record(
        &self,
        ctx: &mut Ctx<'_>,
        layer: usize,
        norm: Option<&Buf<f32>>,
    ) -> Result<(), ModelError> {
        let weights = &self.layers[layer];
        let (x, _) = ctx.normed(norm, false);
        self.queries(ctx, weights, x)?;
        self.keys(ctx, layer, x)?;
        let selected = match weights.indexer.as_ref().zip(self.indexer.as_ref()) {
            Some((weights, indexer)) if indexer.select(ctx, layer, weights, &self.q_latent, x)? => {
                Some(indexer)
            }
            _ => None,
        };
        self.attend(ctx, layer, selected)?;
        let vectors = Vectors {
            x: self.weighed.bind(),
            x_stride: self.config.kv_rank,
            y: self.out.bind(),
            y_stride: self.config.value_dim,
            y_offset: 0,
        };
        ctx.matmul_each(&weights.values, &vectors)?;
        let hidden = ctx.config.hidden_size;
        ctx.add_product(&weights.o, &self.out, ctx.block_out, hidden)
    }

    /// Records queries: projection, rotation, and the key projection.
    fn queries(&self, ctx: &mut Ctx<'_>, weights: &LatentWeights, x: &Buf<f32>) -> Result<(), ModelError> {
        let LatentConfig { nope_dim, rope_dim, .. } = self.config;
        let (heads, head_dim) = (ctx.config.num_heads, nope_dim + rope_dim);
        match &weights.queries {
            LatentQueries::Direct(matrix) => ctx.store_product(matrix, x, &self.q, heads * head_dim)?,
            LatentQueries::OfLatent { rank, a, norm, b } => {
                ctx.store_product(a, x, &self.q_latent, *rank)?;
                ctx.norm_head_slices(HeadSlices::of(1, *rank), EPS, norm, &self.q_latent);
                ctx.store_product(b, &self.q_latent, &self.q, heads * head_dim)?;
            }
        }
        ctx.rotate(&self.rope_q, ctx.rotation(heads, heads * head_dim, nope_dim), &self.q);
        let vectors = Vectors {
            x: self.q.bind(),
            x_stride: head_dim,
            y: self.absorbed.bind(),
            y_stride: self.config.cached(),
            y_offset: 0,
        };
        ctx.matmul_each(&weights.keys, &vectors)
    }

    /// Records latents of keys and values, and their write to the cache.
    fn keys(&self, ctx: &mut Ctx<'_>, layer: usize, x: &Buf<f32>) -> Result<(), ModelError> {
        let (weights, kv_rank, width) = (&self.layers[layer], self.config.kv_rank, self.config.cached());
        ctx.store_product(&weights.kv_a, x, &self.kv, width)?;
        let slices = HeadSlices { stride: width, ..HeadSlices::of(1, kv_rank) };
        ctx.norm_head_slices(slices, EPS, &weights.kv_a_norm, &self.kv);
        ctx.rotate(&self.rope_k, ctx.rotation(1, width, kv_rank), &self.kv);
        let rows = ctx.rows();
        let params = LatentWriteParams { rows, row_stride: width, latent_start: 0, rope_start: kv_rank };
        ctx.on_ring(|ring, context| ring.fetch_partial_blocks(context, layer)).unwrap_or(Ok(()))?;
        let attn_group = ctx.attn_groups.of_layers[layer];
        // Every dispatch writes the latents of rows that have a slot in its destination.
        for destination in ctx.keys.destinations(ctx.kv, ctx.batch, ctx.offload_plan, attn_group, layer) {
            let buffers = LatentWriteBuffers {
                kv: self.kv.bind(),
                slots: destination.slots,
                latents: destination.buffers[0].bind(),
            };
            ctx.pass.dispatch(&self.write, &params, buffers);
        }
        Ok(())
    }

    /// Records the attention of all rows, one by one, to all tokens or to the indexer's lists.
    fn attend(
        &self,
        ctx: &mut Ctx<'_>,
        layer: usize,
        selected: Option<&IndexerState>,
    ) -> Result<(), ModelError> {
        let (rows, attn_group) = (&ctx.group_rows(layer).all, ctx.attn_groups.of_layers[layer]);
        let lists = selected.map(|indexer| (indexer.lists(), indexer.longest_list(ctx.batch)));
        let split = match lists {
            Some((_, longest)) => ctx.splits.listed(rows, longest),
            None => ctx.splits.of(attn_group, Dense::All).split,
        };
        let (stream, keys) = (
            ctx.offload_plan.stream(attn_group, Dense::All),
            Keys::of(ctx.offload_plan, attn_group, Dense::All),
        );
        let task =
            RowTask { rows: &rows.decode, max_keys: u32::MAX, max_partitions: split.max_partitions, keys };
        let kind = if selected.is_some() { &self.selected } else { &self.all };
        let kernel = LatentRows { latent: self, layer, kind, lists, split, stream };
        match stream {
            Some(stream) => run_schedule(
                ctx,
                layer,
                stream,
                ring_schedule(ctx.splits.planner(), &task, &kernel, stream, |_| None),
            )?,
            None => attend_rows(ctx, &task, &kernel),
        }
        ctx.on_ring(RingKeys::end_layer).unwrap_or(Ok(()))
    }
}

/// Rows that are attended in the same way.
struct LatentRows<'a> {
    latent: &'a LatentAttention,
    layer: usize,
    kind: &'a LatentKernels,
    /// Lists of selected tokens, and the length of the longest; `None` for attention to all tokens.
    lists: Option<(&'a Buf<u32>, u32)>,
    split: SplitPlan,
    /// Order in which keys pass through the ring; `None` if all keys are on the device.
    stream: Option<&'a Stream>,
}

impl LatentRows<'_> {
    fn reduced(&self, portion: &Portion) -> bool {
        self.split.max_partitions > 1 || portion.in_chunks
    }

    fn params(&self, ctx: &Ctx<'_>, portion: &Portion) -> MlaDecodeParams {
        let heads = ctx.config.num_heads;
        MlaDecodeParams {
            num_heads: heads,
            q_stride: heads * self.latent.config.cached(),
            max_partitions: self.split.max_partitions,
            partition_size: self.split.partition_size,
            reduced: u32::from(self.reduced(portion)),
            scale: ctx.config.scale,
            list_stride: self.lists.map_or(0, |(_, longest)| 1 + longest),
            first_row: u32_of(portion.rows.start),
            rows: u32_of(portion.rows.len()),
            ..MlaDecodeParams::default()
        }
    }

    fn lists(&self) -> Option<Bind<u32>> {
        self.lists.map(|(lists, _)| lists.bind())
    }
}

impl RowKernel for LatentRows<'_> {
    fn attend(&self, ctx: &mut Ctx<'_>, portion: &Portion, keys: KeyRange) {
        let act = ctx.act;
        let out = if self.reduced(portion) { &*act.partial } else { &self.latent.weighed };
        let tables = match self.stream {
            Some(stream) => ctx.offload_plan.tables(stream),
            None => ctx.batch.tables.bind(),
        };
        let buffers = MlaDecodeBuffers {
            q: self.latent.absorbed.bind(),
            latents: ctx.kv.keys_in(self.layer, keys.at)[0].bind(),
            tables: Some(tables),
            compressed: None,
            rows: ctx.group_rows(self.layer).all.decode.bind(),
            partial: out.bind(),
            stats: act.stats.bind(),
            selected: self.lists(),
            window_slots: None,
            compressed_slots: None,
        };
        let params = self.params(ctx, portion);
        let params = MlaDecodeParams { first_key: keys.first, num_keys: keys.len, ..params };
        ctx.pass.dispatch(&self.kind.attend, &params, buffers);
    }

    fn reduce(&self, ctx: &mut Ctx<'_>, portion: &Portion) {
        if !self.reduced(portion) {
            return;
        }
        let (act, params) = (ctx.act, PagedReduceParams::from(&self.params(ctx, portion)));
        let buffers = PagedReduceBuffers {
            partial: act.partial.bind(),
            stats: act.stats.bind(),
            rows: ctx.group_rows(self.layer).all.decode.bind(),
            out: self.latent.weighed.bind(),
            selected: self.lists(),
            sinks: None,
        };
        ctx.pass.dispatch(&self.kind.reduce, &params, buffers);
    }
}
