//! Multi-head latent attention (MLA), absorbed: queries go through the key projection and meet the cached latents
//! themselves; what comes out goes through the value projection. An indexer may choose the tokens of each query first
//! (DeepSeek Sparse Attention).

use std::ops::Range;
use std::sync::Arc;

use attn_kernels::gpu::{Bind, Buf, Gpu, Pass, Pipeline};
use attn_kernels::kernel::attention::{Attention, Context};
use attn_kernels::kernel::latent_write::{self, LatentWriteParams};
use attn_kernels::kernel::mla_decode::{self, LatentShape, MlaDecodeParams, PARTITION};
use attn_kernels::kernel::mla_decode_coop::MlaKernel;
use attn_kernels::kernel::paged_reduce::{self, PagedReduceParams};

use super::indexer::{Indexer, IndexerState};
use super::inputs::{Plan, u32_of};
use super::layer::Layer;
use super::stream::{Group, Loaded};
use super::{Decoder, DecoderOptions, decode_portion, portions};
use crate::kernel::matmul::Epilogue;
use crate::kernel::norm_heads::NormHeadsParams;
use crate::kernel::rope::{self, RopeParams};
use crate::matrices::{Matrices, Vectors};
use crate::matrix::{Matrix, Product, SLACK};
use crate::{CachePart, DecoderConfig, KvPlan, LatentConfig, ModelError};

/// Weights of a layer.
#[derive(Clone, Debug)]
pub(super) struct Latent {
    pub(super) q_a: Matrix,
    pub(super) q_a_norm: Buf<f32>,
    pub(super) q_b: Matrix,
    pub(super) kv_a: Matrix,
    pub(super) kv_a_norm: Buf<f32>,
    /// By head `[kv_rank + rope, nope + rope]`: the key projection, and what rotates as it is.
    pub(super) keys: Matrices,
    /// By head `[value, kv_rank]`.
    pub(super) values: Matrices,
    pub(super) indexer: Option<Indexer>,
}

/// Kernels and buffers.
#[derive(Debug)]
pub(super) struct LatentState {
    pub(super) config: LatentConfig,
    rope_q: Arc<Pipeline>,
    rope_k: Arc<Pipeline>,
    write: Arc<Pipeline>,
    kernel: MlaKernel,
    /// Attention to all tokens.
    all: Kind,
    /// Attention to those that the indexer chose.
    chosen: Kind,
    shape: LatentShape,
    /// `[max_rows, q_rank]`
    pub(super) q_latent: Buf<f32>,
    /// `[max_rows, num_heads, nope + rope]`
    q: Buf<f32>,
    /// Through the key projection, `[max_rows, num_heads, kv_rank + rope]`.
    absorbed: Buf<f32>,
    /// `[max_rows, kv_rank + rope]`
    kv: Buf<f32>,
    /// Weighed latents, `[max_rows, num_heads, kv_rank]`.
    weighed: Buf<f32>,
    /// `[max_rows, num_heads, value]`
    out: Buf<f32>,
    pub(super) indexer: Option<IndexerState>,
}

/// Rows that are attended alike.
struct Task<'a> {
    rows: &'a [[u32; 4]],
    /// Lists of chosen tokens, and the entries from one to the next; `None` where all is attended.
    lists: Option<(Bind, u32)>,
    max_partitions: u32,
}

#[derive(Debug)]
struct Kind {
    attend: Arc<Pipeline>,
    reduce: Arc<Pipeline>,
}

/// Of the norms of latents; no configuration sets it.
const EPS: f32 = 1e-6;

impl LatentState {
    pub(super) fn new(
        gpu: &Gpu,
        config: &DecoderConfig,
        options: &DecoderOptions,
        kv: &KvPlan,
    ) -> Result<Option<Self>, ModelError> {
        let Some(latent) = config.latent else { return Ok(None) };
        let shape = LatentShape {
            latent: latent.kv_rank,
            rope: latent.rope_dim,
            block_size: kv.options.block_size,
            dtype: options.kv_dtype,
        };
        let kernel = MlaKernel::new(&shape, config.num_heads, options.coop(gpu));
        let kind = |context| {
            let attention = Attention { context, ..Attention::default() };
            let attend = gpu.pipeline(&kernel.variant(&attention))?;
            let reduce = gpu.pipeline(&mla_decode::reduce_variant(&shape, &attention))?;
            Ok::<_, ModelError>(Kind { attend, reduce })
        };
        let rows = options.max_rows as usize;
        let buffer = |name, width: u32| gpu.buffer(name, rows * width as usize + SLACK);
        let heads = config.num_heads;
        let head_dim = latent.nope_dim + latent.rope_dim;
        Ok(Some(Self {
            rope_q: gpu.pipeline(&rope::variant(head_dim, config.rope.interleaved))?,
            rope_k: gpu.pipeline(&rope::variant(latent.cached(), config.rope.interleaved))?,
            write: gpu.pipeline(&latent_write::variant(&shape))?,
            kernel,
            all: kind(Context::Full)?,
            chosen: kind(Context::Tokens)?,
            shape,
            q_latent: buffer("q_latent", latent.q_rank)?,
            q: buffer("latent_q", heads * head_dim)?,
            absorbed: buffer("absorbed", heads * latent.cached())?,
            kv: buffer("latent_kv", latent.cached())?,
            weighed: buffer("weighed", heads * latent.kv_rank)?,
            out: buffer("latent_out", heads * latent.value_dim)?,
            indexer: IndexerState::new(gpu, config, options)?,
            config: latent,
        }))
    }
}

impl Decoder {
    pub(super) fn latent(&self) -> &LatentState {
        self.latent.as_ref().expect("a decoder with latent attention has buffers for it")
    }

    /// Records the first half of a layer: the residual stream plus the attention of its norm.
    pub(super) fn latent_attention(
        &self,
        pass: &mut Pass,
        index: usize,
        weights: &Latent,
        plan: &Plan,
    ) -> Result<(), ModelError> {
        let layer = &self.layers[index];
        let (x, _) = self.normed(pass, &layer.attn_norm, plan.rows, false);
        self.latent_queries(pass, weights, x, plan)?;
        self.latent_keys(pass, index, weights, x, plan)?;
        let chosen = match &weights.indexer {
            Some(indexer) => self.choose_tokens(pass, index, indexer, x, plan)?,
            None => false,
        };
        self.attend_latents(pass, index, plan, chosen);
        let state = self.latent();
        let vectors = Vectors {
            x: (&state.weighed).into(),
            x_stride: state.config.kv_rank,
            y: (&state.out).into(),
            y_stride: state.config.value_dim,
            y_offset: 0,
        };
        weights.values.multiply_each(&self.kernels, pass, plan.rows, &vectors)?;
        self.output(pass, layer, &state.out, plan)
    }

    /// Queries, rotated and through the key projection.
    fn latent_queries(
        &self,
        pass: &mut Pass,
        weights: &Latent,
        x: &Buf<f32>,
        plan: &Plan,
    ) -> Result<(), ModelError> {
        let (state, heads) = (self.latent(), self.config.num_heads);
        let LatentConfig { q_rank, nope_dim, rope_dim, .. } = state.config;
        let head_dim = nope_dim + rope_dim;
        let store = |to| Product { epilogue: Epilogue::Store, ..to };
        weights.q_a.multiply(&self.kernels, pass, &store(self.product(plan, x, &state.q_latent, q_rank)))?;
        self.norm_latent(pass, plan.rows, [q_rank, q_rank], &weights.q_a_norm, &state.q_latent);
        let to = self.product(plan, &state.q_latent, &state.q, heads * head_dim);
        weights.q_b.multiply(&self.kernels, pass, &store(to))?;
        self.turn(pass, &state.rope_q, [heads, heads * head_dim, nope_dim], plan.rows, &state.q);
        let vectors = Vectors {
            x: (&state.q).into(),
            x_stride: head_dim,
            y: (&state.absorbed).into(),
            y_stride: state.config.cached(),
            y_offset: 0,
        };
        weights.keys.multiply_each(&self.kernels, pass, plan.rows, &vectors)
    }

    /// Latents of keys and values, into the cache.
    fn latent_keys(
        &self,
        pass: &mut Pass,
        index: usize,
        weights: &Latent,
        x: &Buf<f32>,
        plan: &Plan,
    ) -> Result<(), ModelError> {
        let state = self.latent();
        let LatentConfig { kv_rank, .. } = state.config;
        let (rows, width) = (plan.rows, state.config.cached());
        let to = self.product(plan, x, &state.kv, width);
        weights.kv_a.multiply(&self.kernels, pass, &Product { epilogue: Epilogue::Store, ..to })?;
        self.norm_latent(pass, rows, [kv_rank, width], &weights.kv_a_norm, &state.kv);
        self.turn(pass, &state.rope_k, [1, width, kv_rank], rows, &state.kv);
        let params = LatentWriteParams { rows, row_stride: width, latent_start: 0, rope_start: kv_rank };
        self.fetch_begun(pass, index, plan);
        let rooms = self.staged.as_ref().map(|staged| staged.rooms(index));
        let host = rooms.or_else(|| self.kv.host_attended(index)).filter(|_| plan.host_slots.is_some());
        let host = host.map(|buffers| (&self.inputs.host_slots, &buffers[0]));
        let device = (&self.view(index).slots, self.kv.buffer(index, CachePart::Latent));
        // Each row's latent goes where one of them has a slot.
        for (slots, cache) in std::iter::once(device).chain(host) {
            let bindings = [(&state.kv).into(), slots.into(), cache.into()];
            pass.dispatch(&state.write, &params, &bindings, latent_write::grid(&state.shape, rows));
        }
        Ok(())
    }

    /// RMS norm of the first `width` of `stride` elements of every row.
    fn norm_latent(
        &self,
        pass: &mut Pass,
        rows: u32,
        [width, stride]: [u32; 2],
        weight: &Buf<f32>,
        x: &Buf<f32>,
    ) {
        let params = NormHeadsParams { rows, heads: 1, width, stride, first: 0, eps: EPS, pad0: 0, pad1: 0 };
        self.norm_heads(pass, &params, weight, x);
    }

    /// Rotates `heads` heads of rows of `stride` f32, from dimension `first` of each on.
    pub(super) fn turn(
        &self,
        pass: &mut Pass,
        pipeline: &Arc<Pipeline>,
        [heads, stride, first]: [u32; 3],
        rows: u32,
        x: &Buf<f32>,
    ) {
        let angles = (&self.inputs.cs, self.config.rope.rotary_dims / 2, false);
        self.turn_by(pass, pipeline, angles, [heads, stride, first], rows, x);
    }

    /// The same by `angles`, `[rows, pairs]` (cos, sin), or back.
    pub(super) fn turn_by(
        &self,
        pass: &mut Pass,
        pipeline: &Arc<Pipeline>,
        (angles, pairs, back): (&Buf<[f32; 2]>, u32, bool),
        [heads, stride, first]: [u32; 3],
        rows: u32,
        x: &Buf<f32>,
    ) {
        let back = u32::from(back);
        let params = RopeParams { rows, heads, stride, pairs, first, back, pad0: 0, pad1: 0 };
        pass.dispatch(pipeline, &params, &[angles.into(), x.into()], rope::grid(rows, heads, pairs));
    }

    /// Attention of all rows, one by one; to the indexer's lists where tokens were chosen.
    fn attend_latents(&self, pass: &mut Pass, index: usize, plan: &Plan, chosen: bool) {
        let rows = &plan.views[self.layers[index].view].all;
        let lists = self.latent().indexer.as_ref().filter(|_| chosen).map(|indexer| indexer.lists(plan));
        let max_partitions = match &lists {
            Some((_, stride)) => (stride - 1).div_ceil(PARTITION),
            None => rows.cut.max_partitions,
        };
        let task = Task { rows: &rows.decode, lists, max_partitions };
        let portion = decode_portion(&self.config, max_partitions);
        let Some(stream) = &plan.stream else {
            for rows in portions(0..rows.decode.len(), portion) {
                self.attend_latent_rows(pass, index, &task, rows, None);
            }
            return;
        };
        for group in &stream.groups {
            let mut loaded = self.unloaded();
            for rows in portions(group.rows(rows), portion) {
                self.attend_latent_rows(pass, index, &task, rows, Some((group, &mut loaded)));
            }
        }
    }

    /// Rows `range` of a task; chunk by chunk where their latents go through the ring.
    fn attend_latent_rows(
        &self,
        pass: &mut Pass,
        index: usize,
        task: &Task<'_>,
        range: Range<usize>,
        mut ring: Option<(&Group, &mut Loaded)>,
    ) {
        let (state, a, heads) = (self.latent(), &self.activations, self.config.num_heads);
        let (rows, first_list) = (u32_of(range.len()), u32_of(range.start));
        let kind = if task.lists.is_some() { &state.chosen } else { &state.all };
        let bind = task.lists.as_ref().map(|(bind, _)| bind.clone());
        let max_partitions = task.max_partitions;
        let reduced = max_partitions > 1 || ring.is_some();
        let list = Bind::at(self.view(index).all.decode.raw(), range.start as u64 * 16);
        let out = if reduced { &a.partial } else { &state.weighed };
        let tables = if ring.is_some() { &self.inputs.stream_tables } else { &self.inputs.tables };
        let mut bindings: Vec<Bind> = vec![
            (&state.absorbed).into(),
            self.kv.buffer(index, CachePart::Latent).into(),
            tables.into(),
            list.clone(),
            out.into(),
            (&a.stats).into(),
        ];
        bindings.extend(bind.clone());
        let params = MlaDecodeParams {
            num_heads: heads,
            q_stride: heads * state.config.cached(),
            max_partitions,
            reduced: u32::from(reduced),
            scale: self.config.scale,
            list_stride: task.lists.as_ref().map_or(0, |(_, stride)| *stride),
            first_list,
            ..MlaDecodeParams::default()
        };
        let longest = task.rows[range].iter().map(|row| row[1]).max().unwrap_or(0);
        let num_keys = ring.as_ref().map_or(u32::MAX, |(group, _)| group.chunk_tokens);
        for (number, first_key) in (0..longest).step_by(num_keys as usize).enumerate() {
            if let Some((group, loaded)) = &mut ring {
                self.fetch(pass, index, group, number, loaded);
            }
            let params = MlaDecodeParams { first_key, num_keys, ..params };
            let grid = state.kernel.grid(rows, max_partitions.min(num_keys / PARTITION));
            pass.dispatch(&kind.attend, &params, &bindings, grid);
        }
        if reduced {
            let params = PagedReduceParams::from(&params);
            let mut bindings: Vec<Bind> =
                vec![(&a.partial).into(), (&a.stats).into(), list, (&state.weighed).into()];
            bindings.extend(bind);
            pass.dispatch(&kind.reduce, &params, &bindings, paged_reduce::grid(heads, rows));
        }
    }
}

impl Layer {
    /// Weights of latent attention, where the layer has it.
    pub(super) fn latent(&self) -> Option<&Latent> {
        self.latent.as_deref()
    }
}
