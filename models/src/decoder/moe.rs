//! Mixtures of experts: every row goes to a few experts, and all of it stays on the device.

use std::ops::Range;
use std::sync::Arc;

use attn_kernels::gpu::{Bind, Buf, Gpu, Pass, Pipeline};

use super::inputs::Plan;
use super::layer::Layer;
use super::{Decoder, DecoderOptions};
use crate::kernel::glu::{self, GluParams};
use crate::kernel::matmul::Epilogue;
use crate::kernel::moe_combine::{self, MoeCombineParams};
use crate::kernel::moe_route::{self, MoeRouteParams};
use crate::kernel::moe_sort::{self, MoeSortParams};
use crate::matrices::{Matrices, Routes, Vectors};
use crate::matrix::{Matrix, Precision, Product, SLACK};
use crate::{Activation, DecoderConfig, ModelError, MoeConfig};

/// Weights of a layer's router and experts.
#[derive(Clone, Debug)]
pub(super) struct Moe {
    pub(super) router: Matrix,
    pub(super) router_bias: Option<Buf<f32>>,
    /// Added to scores for the choice.
    pub(super) correction: Buf<f32>,
    /// Experts of each token id, where these choose.
    pub(super) table: Option<Buf<u32>>,
    pub(super) experts: Experts,
    pub(super) shared: Option<SharedExpert>,
}

#[derive(Clone, Debug)]
pub(super) struct Experts {
    /// Gates, then ups.
    pub(super) gate_up: Matrices,
    pub(super) down: Matrices,
    /// Of gates and ups, and of downs.
    pub(super) biases: Option<[Buf<f32>; 2]>,
}

/// The expert of all rows.
#[derive(Clone, Debug)]
pub(super) struct SharedExpert {
    pub(super) gate_up: Matrix,
    pub(super) down: Matrix,
}

/// Kernels and buffers of a decoder with experts.
#[derive(Debug)]
pub(super) struct MoeState {
    config: MoeConfig,
    route: Arc<Pipeline>,
    /// By the table of a layer.
    route_hashed: Option<Arc<Pipeline>>,
    sort: Arc<Pipeline>,
    glu: Arc<Pipeline>,
    glu_shared: Arc<Pipeline>,
    combine: Arc<Pipeline>,
    /// Rows whose experts run at one time.
    portion: u32,
    /// `[max_rows, num_experts]`
    logits: Buf<f32>,
    /// `[max_rows, top_k]`
    experts: Buf<u32>,
    /// `[max_rows, top_k]`
    weights: Buf<f32>,
    /// Pairs of a portion by expert.
    order: Buf<u32>,
    tiles: Buf<[u32; 4]>,
    /// Gates and ups: `[portion * top_k, 2 * inner]`, or of the shared expert.
    gate_up: Buf<f32>,
    /// `[portion * top_k, inner]`, or of the shared expert.
    inner: Buf<f32>,
    /// What experts made of rows, `[portion * top_k, hidden]`.
    out: Buf<f32>,
}

/// Bytes that the widest buffer of pairs takes at most.
const PAIR_BYTES: usize = 64 << 20;

/// Portions are multiples of this many rows, for the alignment of bindings.
const PORTION: usize = 64;

impl MoeState {
    pub(super) fn new(
        gpu: &Gpu,
        config: &DecoderConfig,
        options: &DecoderOptions,
    ) -> Result<Option<Self>, ModelError> {
        let Some(moe) = config.moe else { return Ok(None) };
        let (rows, top, hidden) =
            (options.max_rows as usize, moe.top_k as usize, config.hidden_size as usize);
        let (inner, shared) = (moe.inner_size as usize, moe.shared_size.unwrap_or(0) as usize);
        let portion = (PAIR_BYTES / (top * hidden.max(2 * inner) * 4)).next_multiple_of(PORTION);
        let portion = portion.max(PORTION).min(rows);
        let pairs = portion * top;
        Ok(Some(Self {
            route: gpu.pipeline(&moe_route::variant(&moe, false))?,
            route_hashed: match config.layers.iter().any(|layer| layer.mlp == crate::Mlp::HashedExperts) {
                true => Some(gpu.pipeline(&moe_route::variant(&moe, true))?),
                false => None,
            },
            sort: gpu.pipeline(&moe_sort::variant(moe.num_experts))?,
            glu: gpu.pipeline(&glu::variant(moe.activation, moe.biases, moe.weighted_input))?,
            glu_shared: gpu.pipeline(&glu::variant(moe.activation, false, false))?,
            combine: gpu.pipeline(&moe_combine::variant(moe.top_k, moe.biases, !moe.weighted_input))?,
            portion: u32::try_from(portion).expect("at most max_rows"),
            logits: gpu.buffer("router_logits", rows * moe.num_experts as usize)?,
            experts: gpu.buffer("experts", rows * top)?,
            weights: gpu.buffer("expert_weights", rows * top)?,
            order: gpu.buffer("expert_order", pairs)?,
            tiles: gpu.buffer("expert_tiles", pairs)?,
            gate_up: gpu.buffer("gate_up", (pairs * inner).max(rows * shared) * 2)?,
            inner: gpu.buffer("expert_inner", (pairs * inner).max(rows * shared) + SLACK)?,
            out: gpu.buffer("expert_out", pairs * hidden)?,
            config: moe,
        }))
    }

    /// What was chosen in the layer at hand, `[rows, top_k]`.
    pub(super) fn chosen(&self) -> &Buf<u32> {
        &self.experts
    }

    fn glu_params(&self, rows: u32, inner: u32) -> GluParams {
        let (alpha, limit) = match self.config.activation {
            Activation::Silu => (1.0, 0.0),
            Activation::LimitedSilu { limit } => (1.0, limit),
            Activation::LimitedSwiglu { alpha, limit } => (alpha, limit),
        };
        GluParams { rows, inner, out_stride: inner, alpha, limit, pad0: 0, pad1: 0, pad2: 0 }
    }
}

impl Decoder {
    /// Records the second half of a layer with experts.
    pub(super) fn experts(
        &self,
        pass: &mut Pass,
        layer: &Layer,
        moe: &Moe,
        plan: &Plan,
    ) -> Result<(), ModelError> {
        let (x, _) = self.normed(pass, &layer.mlp_norm, plan.rows, false);
        self.route(pass, moe, x, plan)?;
        let portion = self.moe().portion;
        for first in (0..plan.rows).step_by(portion as usize) {
            self.routed(pass, &moe.experts, x, first..plan.rows.min(first + portion))?;
        }
        match &moe.shared {
            Some(shared) => self.shared_expert(pass, shared, x, plan),
            None => Ok(()),
        }
    }

    pub(super) fn moe(&self) -> &MoeState {
        self.moe.as_ref().expect("a decoder with experts has buffers for them")
    }

    /// Leaves each row's experts and weights.
    fn route(&self, pass: &mut Pass, moe: &Moe, x: &Buf<f32>, plan: &Plan) -> Result<(), ModelError> {
        let (state, rows) = (self.moe(), plan.rows);
        let mut epilogue = Epilogue::Store;
        if let Some(bias) = &moe.router_bias {
            self.bias(pass, bias, rows, false, &state.logits);
            epilogue = Epilogue::Add;
        }
        // A choice turns on small differences: logits are exact.
        let to = self.product(plan, x, &state.logits, state.config.num_experts);
        moe.router.multiply(&self.kernels, pass, &Product { precision: Precision::EXACT, epilogue, ..to })?;
        let params = MoeRouteParams { rows, scale: state.config.router.scale, pad0: 0, pad1: 0 };
        let hashed = moe.table.as_ref().zip(state.route_hashed.as_ref());
        let (table, pipeline) = hashed.unwrap_or((&self.inputs.tokens, &state.route));
        let bindings = [
            (&state.logits).into(),
            (&moe.correction).into(),
            (&self.inputs.tokens).into(),
            table.into(),
            (&state.experts).into(),
            (&state.weights).into(),
        ];
        pass.dispatch(pipeline, &params, &bindings, moe_route::grid(rows));
        Ok(())
    }

    /// Adds what their experts make of `rows` to the residual stream.
    fn routed(
        &self,
        pass: &mut Pass,
        experts: &Experts,
        x: &Buf<f32>,
        rows: Range<u32>,
    ) -> Result<(), ModelError> {
        let state = self.moe();
        let MoeConfig { num_experts, top_k, inner_size, .. } = state.config;
        let hidden = self.config.hidden_size;
        let (count, pairs) = (rows.end - rows.start, (rows.end - rows.start) * top_k);
        let at = |buffer: &attn_kernels::gpu::Raw, width: u32| {
            Bind::at(buffer, u64::from(rows.start) * u64::from(width) * 4)
        };
        let chosen = [at(state.experts.raw(), top_k), at(state.weights.raw(), top_k)];
        let rows_a_matrix = pairs.div_ceil(num_experts);

        let gate_up = Vectors {
            x: at(x.raw(), hidden),
            x_stride: hidden,
            y: (&state.gate_up).into(),
            y_stride: 2 * inner_size,
            y_offset: 0,
        };
        let routes = self.sorted(pass, &experts.gate_up, pairs, &chosen[0], top_k);
        experts.gate_up.multiply_routed(&self.kernels, pass, &gate_up, &routes)?;
        let [gate_up_bias, down_bias] = match &experts.biases {
            Some(biases) => biases.each_ref().map(Bind::from),
            None => [(&state.logits).into(), (&state.logits).into()],
        };
        let params = state.glu_params(pairs, inner_size);
        let [ids, weights] = chosen.clone();
        let bindings = [(&state.gate_up).into(), ids, weights, gate_up_bias, (&state.inner).into()];
        pass.dispatch(&state.glu, &params, &bindings, glu::grid(pairs, inner_size));

        let down = Vectors {
            x: (&state.inner).into(),
            x_stride: inner_size,
            y: (&state.out).into(),
            y_stride: hidden,
            y_offset: 0,
        };
        let same = experts.down.tile_rows(&self.kernels, rows_a_matrix) == routes.tile_rows;
        let routes = match same {
            true => Routes { x_div: 1, ..routes },
            false => self.sorted(pass, &experts.down, pairs, &chosen[0], 1),
        };
        experts.down.multiply_routed(&self.kernels, pass, &down, &routes)?;
        let params = MoeCombineParams { rows: count, width: hidden, pad0: 0, pad1: 0 };
        let [ids, weights] = chosen;
        let y = at(self.activations.hidden.raw(), hidden);
        let bindings = [(&state.out).into(), ids, weights, down_bias, y];
        pass.dispatch(&state.combine, &params, &bindings, moe_combine::grid(count, hidden));
        Ok(())
    }

    /// Orders pairs by expert for products with `matrices`.
    fn sorted(
        &self,
        pass: &mut Pass,
        matrices: &Matrices,
        pairs: u32,
        experts: &Bind,
        x_div: u32,
    ) -> Routes<'_> {
        let state = self.moe();
        let num_experts = state.config.num_experts;
        let rows_a_matrix = pairs.div_ceil(num_experts);
        let tile = matrices.tile_rows(&self.kernels, rows_a_matrix);
        let most_tiles = moe_sort::most_tiles(pairs, num_experts, tile);
        let params = MoeSortParams { pairs, tile, most_tiles, pad0: 0 };
        let bindings = [experts.clone(), (&state.tiles).into(), (&state.order).into()];
        pass.dispatch(&state.sort, &params, &bindings, [1, 1, 1]);
        let (tiles, order) = (&state.tiles, &state.order);
        Routes { tiles, order, rows_a_matrix, tile_rows: tile, most_tiles, x_div }
    }

    fn shared_expert(
        &self,
        pass: &mut Pass,
        shared: &SharedExpert,
        x: &Buf<f32>,
        plan: &Plan,
    ) -> Result<(), ModelError> {
        let state = self.moe();
        let width = state.config.shared_size.expect("a shared expert has a width");
        let to = self.product(plan, x, &state.gate_up, 2 * width);
        shared.gate_up.multiply(&self.kernels, pass, &Product { epilogue: Epilogue::Store, ..to })?;
        let params = state.glu_params(plan.rows, width);
        // No row has an expert of its own or a weight here.
        let unused: Bind = (&self.inputs.tokens).into();
        let bindings =
            [(&state.gate_up).into(), unused.clone(), unused.clone(), unused, (&state.inner).into()];
        pass.dispatch(&state.glu_shared, &params, &bindings, glu::grid(plan.rows, width));
        let out = self.product(plan, &state.inner, &self.activations.hidden, self.config.hidden_size);
        shared.down.multiply(&self.kernels, pass, &out)
    }
}
