//! Attention to a window of tokens and to compressed entries under one softmax (DeepSeek V4). One vector a token or entry
//! is key and value of all heads; what comes out is turned back, so that it follows from distances alone.

mod choose;
mod entries;
mod lists;
mod places;
mod step;

use std::ops::Range;
use std::sync::Arc;

use attn_kernels::gpu::{Bind, Buf, Gpu, Pass, Pipeline};
use attn_kernels::kernel::attention::Attention;
use attn_kernels::kernel::latent_write::{self, LatentWriteParams};
use attn_kernels::kernel::mla_decode::{self, LatentShape, MlaDecodeParams};
use attn_kernels::kernel::mla_decode_coop::MlaKernel;
use attn_kernels::kernel::paged_reduce::{self, PagedReduceParams};

pub(super) use self::entries::CompressorWeights;
pub(super) use self::step::Step;

use self::choose::IndexState;
use self::entries::{EntryState, StateCache};
use self::lists::Lists;
use self::places::{LayerPlaces, Places};
use self::step::KindStep;
use super::inputs::{Plan, View, u32_of};
use super::turns::Turns;
use super::{Decoder, DecoderOptions, decode_portion, portions};
use crate::batch::Slice;
use crate::kernel::index_write::{self, IndexWriteParams};
use crate::kernel::matmul::Epilogue;
use crate::kernel::norm_heads::NormHeadsParams;
use crate::kernel::rope;
use crate::matrices::{Matrices, Vectors};
use crate::matrix::{Matrix, Precision, Product, SLACK};
use crate::{CachePart, CompressedConfig, DecoderConfig, KvPlan, ModelError};

/// Weights of a layer.
#[derive(Clone, Debug)]
pub(super) struct Compressed {
    pub(super) q_a: Matrix,
    pub(super) q_a_norm: Buf<f32>,
    pub(super) q_b: Matrix,
    pub(super) kv: Matrix,
    pub(super) kv_norm: Buf<f32>,
    /// By group of heads.
    pub(super) o_a: Matrices,
    pub(super) o_b: Matrix,
    pub(super) entries: Option<EntryWeights>,
}

/// Weights behind the entries of a layer.
#[derive(Clone, Debug)]
pub(super) struct EntryWeights {
    pub(super) compressor: CompressorWeights,
    /// What chooses among them.
    pub(super) indexer: Option<IndexWeights>,
}

/// Weights of an indexer over entries.
#[derive(Clone, Debug)]
pub(super) struct IndexWeights {
    pub(super) compressor: CompressorWeights,
    /// From the latent of queries.
    pub(super) q: Matrix,
    /// Weight of each head, with all constant factors on scores.
    pub(super) gates: Matrix,
}

/// Kernels and buffers.
#[derive(Debug)]
pub(super) struct CompressedState {
    config: CompressedConfig,
    places: Places,
    turns: Turns,
    lists: Lists,
    entries: EntryState,
    index: Option<IndexState>,
    rope: Arc<Pipeline>,
    write: Arc<Pipeline>,
    kernel: MlaKernel,
    attend: Arc<Pipeline>,
    reduce: Arc<Pipeline>,
    shape: LatentShape,
    /// Factors and zeros of the norm of query heads.
    plain_norm: Buf<f32>,
    /// `[max_rows, q_rank]`
    q_latent: Buf<f32>,
    /// `[max_rows, head_dim]`
    kv: Buf<f32>,
    /// Between the halves of the output projection, `[max_rows, groups * rank]`.
    grouped: Buf<f32>,
}

impl CompressedState {
    pub(super) fn new(
        gpu: &Gpu,
        config: &DecoderConfig,
        options: &DecoderOptions,
        (kv, views): (&KvPlan, &[View]),
        plain_norm: Buf<f32>,
    ) -> Result<Option<Self>, ModelError> {
        let Some(compressed) = config.compressed.clone() else { return Ok(None) };
        let (latent, block_size, dtype) = (config.head_dim, options.block_size, options.kv_dtype);
        let shape = LatentShape { latent, rope: 0, block_size, dtype };
        let kernel = MlaKernel::new(&shape, config.num_heads, options.coop(gpu));
        let places = Places::new(config, kv);
        let attention = Attention { sinks: config.sinks, ..Attention::default() };
        let rows = options.max_rows as usize;
        let buffer = |name, width: u32| gpu.buffer(name, rows * width as usize + SLACK);
        let rope_dim = compressed.rope.rotary_dims;
        Ok(Some(Self {
            lists: Lists::new(gpu, &places, views.len(), [rows, rope_dim as usize / 2])?,
            entries: EntryState::new(gpu, config, options, &places, rope_dim)?,
            index: IndexState::new(gpu, config, options, &places)?,
            rope: gpu.pipeline(&rope::variant(config.head_dim, true))?,
            write: gpu.pipeline(&latent_write::variant(&shape))?,
            attend: gpu.pipeline(&kernel.variant_of_two())?,
            reduce: gpu.pipeline(&mla_decode::reduce_variant(&shape, &attention))?,
            kernel,
            plain_norm,
            q_latent: buffer("q_latent", compressed.q_rank)?,
            kv: buffer("kv", config.head_dim)?,
            grouped: buffer("grouped", compressed.output_groups * compressed.output_rank)?,
            places,
            turns: Turns::new(&compressed.rope),
            shape,
            config: compressed,
        }))
    }

    /// Lays a step out.
    pub(super) fn plan(&self, config: &DecoderConfig, slices: &[Slice<'_>], plan: &Plan) -> Step {
        Step::new(config, (&self.places, &self.turns), slices, plan)
    }

    /// Writes the lists of a step.
    pub(super) fn write(&mut self, gpu: &Gpu, step: &Step) -> Result<(), ModelError> {
        self.lists.write(gpu, step)?;
        self.index.as_mut().map_or(Ok(()), |index| index.write(gpu, step))
    }
}

/// What a step has of one kind of entries.
fn kind_of(plan: &Plan, kind: usize) -> &KindStep {
    &plan.compressed.as_ref().expect("a step of compressed attention").kinds[kind]
}

impl Decoder {
    fn compressed(&self) -> &CompressedState {
        self.compressed.as_ref().expect("a decoder of compressed attention has buffers for it")
    }

    /// Records the slots that rows attend in all layers.
    pub(super) fn compressed_slots(&self, pass: &mut Pass, plan: &Plan) {
        if let (Some(state), Some(step)) = (&self.compressed, &plan.compressed) {
            state.lists.record(pass, (&state.places, &self.views), &self.inputs.tables, step);
        }
    }

    /// Records attention to the norm of what the layer reads, and adds it to the residual.
    pub(super) fn compressed_attention(
        &self,
        pass: &mut Pass,
        index: usize,
        weights: &Compressed,
        plan: &Plan,
    ) -> Result<(), ModelError> {
        let (state, a) = (self.compressed(), &self.activations);
        let (x, _) = self.normed(pass, &self.layers[index].attn_norm, plan.rows, false);
        self.compressed_queries(pass, index, weights, x, plan)?;
        self.window_keys(pass, index, weights, x, plan)?;
        let places = state.places.layers[index];
        if let Some((entries, places)) = weights.entries.as_ref().zip(places) {
            self.new_entries(pass, index, (entries, places), x, plan)?;
        }
        self.attend_compressed(pass, index, places, plan);

        let (heads, dim) = (self.config.num_heads, self.config.head_dim);
        self.turn_heads(pass, index, [heads, heads * dim], true, &a.attended, plan.rows);
        let CompressedConfig { output_groups, output_rank, .. } = state.config;
        let vectors = Vectors {
            x: (&a.attended).into(),
            x_stride: heads * dim / output_groups,
            y: (&state.grouped).into(),
            y_stride: output_rank,
            y_offset: 0,
        };
        weights.o_a.multiply_each(&self.kernels, pass, plan.rows, &vectors)?;
        let to = self.product(plan, &state.grouped, &a.hidden, self.config.hidden_size);
        weights.o_b.multiply(&self.kernels, pass, &to)
    }

    fn compressed_queries(
        &self,
        pass: &mut Pass,
        index: usize,
        weights: &Compressed,
        x: &Buf<f32>,
        plan: &Plan,
    ) -> Result<(), ModelError> {
        let (state, q) = (self.compressed(), &self.activations.q);
        let (heads, width, rank) = (self.config.num_heads, self.config.head_dim, state.config.q_rank);
        // The indexer reads the latent too.
        weights.q_a.multiply(&self.kernels, pass, &self.exactly(plan, x, &state.q_latent, rank))?;
        self.norm_runs(pass, plan.rows, [1, rank], &weights.q_a_norm, &state.q_latent);
        let to = self.product(plan, &state.q_latent, q, heads * width);
        weights.q_b.multiply(&self.kernels, pass, &Product { epilogue: Epilogue::Store, ..to })?;
        self.norm_runs(pass, plan.rows, [heads, width], &state.plain_norm, q);
        self.turn_heads(pass, index, [heads, heads * width], false, q, plan.rows);
        Ok(())
    }

    /// Keys, which are values too, of the step's tokens, into the window.
    fn window_keys(
        &self,
        pass: &mut Pass,
        index: usize,
        weights: &Compressed,
        x: &Buf<f32>,
        plan: &Plan,
    ) -> Result<(), ModelError> {
        let (state, rows, width) = (self.compressed(), plan.rows, self.config.head_dim);
        let to = self.product(plan, x, &state.kv, width);
        weights.kv.multiply(&self.kernels, pass, &Product { epilogue: Epilogue::Store, ..to })?;
        self.norm_runs(pass, rows, [1, width], &weights.kv_norm, &state.kv);
        self.turn_heads(pass, index, [1, width], false, &state.kv, rows);
        self.write_vectors(pass, index, CachePart::Latent, &state.kv, &self.view(index).slots, rows);
        Ok(())
    }

    /// Entries that the step completes, and which of them each row attends.
    fn new_entries(
        &self,
        pass: &mut Pass,
        index: usize,
        (weights, places): (&EntryWeights, LayerPlaces),
        x: &Buf<f32>,
        plan: &Plan,
    ) -> Result<(), ModelError> {
        let state = self.compressed();
        let LayerPlaces { kind, states: group, index_states } = places;
        let slots = &state.lists.kinds[kind].slots;
        let cache = StateCache { part: CachePart::States, kind, group, dim: self.config.head_dim };
        let count = self.compress(pass, index, &weights.compressor, cache, x, plan)?;
        self.write_vectors(pass, index, CachePart::Entries, &state.entries.entries, slots, count);
        let Some((weights, indexer)) = weights.indexer.as_ref().zip(state.index.as_ref()) else {
            return Ok(());
        };
        let dim = indexer.keys.head_dim;
        let cache = StateCache { part: CachePart::IndexStates, kind, group: index_states, dim };
        let rows = self.compress(pass, index, &weights.compressor, cache, x, plan)?;
        if rows > 0 {
            let params = IndexWriteParams { rows, row_stride: dim, first: 0, pad0: 0 };
            let keys = self.kv.buffer(index, CachePart::IndexKeys);
            let bindings: [Bind; 3] = [(&state.entries.entries).into(), slots.into(), keys.into()];
            pass.dispatch(&indexer.write, &params, &bindings, index_write::grid(&indexer.keys, rows));
        }
        self.choose_entries(pass, index, weights, x, plan)
    }

    /// Writes `rows` vectors of `head_dim` elements to their slots.
    fn write_vectors(
        &self,
        pass: &mut Pass,
        index: usize,
        part: CachePart,
        x: &Buf<f32>,
        slots: &Buf<i32>,
        rows: u32,
    ) {
        let (state, width) = (self.compressed(), self.config.head_dim);
        if rows > 0 {
            let params = LatentWriteParams { rows, row_stride: width, latent_start: 0, rope_start: width };
            let bindings: [Bind; 3] = [x.into(), slots.into(), self.kv.buffer(index, part).into()];
            pass.dispatch(&state.write, &params, &bindings, latent_write::grid(&state.shape, rows));
        }
    }

    /// Attention of all rows, one by one.
    fn attend_compressed(&self, pass: &mut Pass, index: usize, places: Option<LayerPlaces>, plan: &Plan) {
        let step = plan.compressed.as_ref().expect("a step of compressed attention");
        let portion = decode_portion(&self.config, step.max_partitions);
        for rows in portions(0..step.rows.len(), portion) {
            self.attend_compressed_rows(pass, index, places, step, rows);
        }
    }

    fn attend_compressed_rows(
        &self,
        pass: &mut Pass,
        index: usize,
        places: Option<LayerPlaces>,
        step: &Step,
        range: Range<usize>,
    ) {
        let (state, a, heads) = (self.compressed(), &self.activations, self.config.num_heads);
        let window = self.kv.buffer(index, CachePart::Latent);
        let window_slots = state.lists.window(self.layers[index].view);
        // A layer without entries reads nothing of the second cache.
        let (list, entries, entry_slots, compressed_stride) = match places {
            None => (&state.lists.rows, window, window_slots, 0),
            Some(LayerPlaces { kind, .. }) => {
                let lists = &state.lists.kinds[kind];
                let entries = self.kv.buffer(index, CachePart::Entries);
                (&lists.rows, entries, lists.seen(), step.kinds[kind].stride)
            }
        };
        let (rows, first_list, max_partitions) =
            (u32_of(range.len()), u32_of(range.start), step.max_partitions);
        let list = Bind::at(list.raw(), range.start as u64 * 16);
        let params = MlaDecodeParams {
            num_heads: heads,
            q_stride: heads * self.config.head_dim,
            max_partitions,
            reduced: 1,
            scale: self.config.scale,
            list_stride: step.window_stride,
            first_list,
            compressed_stride,
            ..MlaDecodeParams::default()
        };
        let bindings: [Bind; 8] = [
            (&a.q).into(),
            window.into(),
            entries.into(),
            list.clone(),
            (&a.partial).into(),
            (&a.stats).into(),
            window_slots.into(),
            entry_slots.into(),
        ];
        pass.dispatch(&state.attend, &params, &bindings, state.kernel.grid(rows, max_partitions));
        let params = PagedReduceParams::from(&params);
        let mut bindings: Vec<Bind> =
            vec![(&a.partial).into(), (&a.stats).into(), list, (&a.attended).into()];
        bindings.extend(self.layers[index].sinks.as_ref().map(Bind::from));
        pass.dispatch(&state.reduce, &params, &bindings, paged_reduce::grid(heads, rows));
    }

    /// Rotates the last dimensions of heads, as layer `index` does, or back.
    fn turn_heads(
        &self,
        pass: &mut Pass,
        index: usize,
        [heads, stride]: [u32; 2],
        back: bool,
        x: &Buf<f32>,
        rows: u32,
    ) {
        let state = self.compressed();
        let angles = match state.places.layers[index] {
            Some(_) => self.compress_angles(back),
            None => (&self.inputs.cs, self.config.rope.rotary_dims / 2, back),
        };
        let first = self.config.head_dim - 2 * angles.1;
        self.turn_by(pass, &state.rope, angles, [heads, stride, first], rows, x);
    }

    /// Angles of rows in layers with entries.
    fn compress_angles(&self, back: bool) -> (&Buf<[f32; 2]>, u32, bool) {
        let state = self.compressed();
        (&state.lists.turns, state.config.rope.rotary_dims / 2, back)
    }

    /// A product of all rows in f32, whatever their number.
    fn exactly<'a>(&self, plan: &Plan, x: &'a Buf<f32>, y: &'a Buf<f32>, stride: u32) -> Product<'a> {
        let to = self.product(plan, x, y, stride);
        Product { precision: Precision::EXACT, epilogue: Epilogue::Store, ..to }
    }

    /// RMS norm of `heads` runs of every row.
    fn norm_runs(
        &self,
        pass: &mut Pass,
        rows: u32,
        [heads, width]: [u32; 2],
        weight: &Buf<f32>,
        x: &Buf<f32>,
    ) {
        let (stride, eps) = (heads * width, self.config.rms_norm_eps);
        let params = NormHeadsParams { rows, heads, width, stride, first: 0, eps, pad0: 0, pad1: 0 };
        self.norm_heads(pass, &params, weight, x);
    }
}
