//! Mixtures of experts: every row uses a few experts, and all routing stays on the device.

use std::ops::Range;
use std::sync::Arc;

use attn_kernels::gpu::{Bind, Buf, Gpu, Pipeline};

use super::choices::{ChoiceBuffer, ChoiceKind};
use super::ops::Ctx;
use super::options::DecoderOptions;
use crate::kernel::ExpertTerms;
use crate::kernel::glu::{self, GluBuffers, GluParams};
use crate::kernel::matmul::Epilogue;
use crate::kernel::moe_combine::{self, MoeCombineBuffers, MoeCombineParams};
use crate::kernel::moe_route::{self, ExpertSource, MoeRouteBuffers, MoeRouteParams};
use crate::kernel::moe_sort::{self, MoeSortBuffers, MoeSortParams};
use crate::matrix::{
    ExpertMatrices, FewExperts, FewPairs, Matrix, Norm, Precision, Product, RoutedPairs, SLACK, Vectors,
};
use crate::{Activation, DecoderConfig, ModelError, MoeConfig};

/// Weights of a layer's router and experts.
#[derive(Clone, Debug)]
pub(super) struct Moe {
    pub(super) router: Matrix,
    pub(super) router_bias: Option<Buf<f32>>,
    /// Correction that is added to the router's scores for the choice of experts alone.
    pub(super) correction: Buf<f32>,
    /// Experts of each token id, if token ids determine them.
    pub(super) table: Option<Buf<u32>>,
    pub(super) experts: Experts,
    pub(super) shared: Option<SharedExpert>,
}

#[derive(Clone, Debug)]
pub(super) struct Experts {
    /// Gates, then ups.
    pub(super) gate_up: Matrix,
    pub(super) down: Matrix,
    /// Biases of gates and ups, and of downs.
    pub(super) biases: Option<[Buf<f32>; 2]>,
}

impl Experts {
    fn matrices(&self) -> ExpertMatrices<'_> {
        ExpertMatrices { gate_up: &self.gate_up, down: &self.down }
    }
}

/// The expert that all rows use.
#[derive(Clone, Debug)]
pub(super) struct SharedExpert {
    /// Number of elements between its two products.
    pub(super) width: u32,
    pub(super) gate_up: Matrix,
    pub(super) down: Matrix,
}

/// Kernels and buffers of the experts.
#[derive(Debug)]
pub(super) struct MoeState {
    config: MoeConfig,
    route: Arc<Pipeline>,
    /// Kernel that reads the experts from a layer's table.
    route_hashed: Option<Arc<Pipeline>>,
    sort: Arc<Pipeline>,
    glu: Arc<Pipeline>,
    glu_shared: Arc<Pipeline>,
    combine: Arc<Pipeline>,
    /// Kernels and buffers for steps of few rows.
    few: FewExperts,
    /// Maximum number of rows whose experts run at one time.
    portion: u32,
    /// Router logits, `[max_rows, num_experts]`.
    logits: Buf<f32>,
    /// Experts of each row, `[max_rows, top_k]`.
    experts: Buf<u32>,
    /// Weights of each row's experts, `[max_rows, top_k]`.
    weights: Buf<f32>,
    /// Pairs of a row in a portion and an expert, sorted by expert.
    order: Buf<u32>,
    tiles: Buf<[u32; 4]>,
    /// Gates and ups of routed experts, `[portion * top_k, 2 * inner]`, or of the shared expert.
    gate_up: Buf<f32>,
    /// Activations between the two products of routed experts, `[portion * top_k, inner]`, or of the shared expert.
    inner: Buf<f32>,
    /// Outputs of experts, `[portion * top_k, hidden]`.
    out: Buf<f32>,
}

/// Maximum number of bytes of the widest buffer of pairs, which is one binding. Larger portions read each matrix less
/// often.
const PAIR_BYTES: u64 = 256 << 20;

/// Divisor of the number of rows of a portion, for the alignment of bindings.
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
        let pair_bytes = usize::try_from(PAIR_BYTES.min(gpu.max_binding_bytes())).unwrap_or(usize::MAX);
        let portion = pair_bytes / (top * hidden.max(2 * inner) * 4) / PORTION * PORTION;
        let portion = portion.max(PORTION).min(rows);
        let pairs = portion * top;
        let route =
            |source| gpu.pipeline(&gpu.profile().best(|level| moe_route::variant(&moe, source, level)));
        Ok(Some(Self {
            route: route(ExpertSource::Scores)?,
            route_hashed: match config.layers.iter().any(|layer| layer.mlp == crate::Mlp::HashedExperts) {
                true => Some(route(ExpertSource::Table)?),
                false => None,
            },
            sort: gpu.pipeline(&moe_sort::variant(moe.num_experts))?,
            glu: gpu.pipeline(&glu::variant(
                moe.activation,
                ExpertTerms { biased: moe.biases, weighted: moe.weighted_input },
            ))?,
            glu_shared: gpu.pipeline(&glu::variant(moe.activation, ExpertTerms::NONE))?,
            combine: gpu.pipeline(&moe_combine::variant(
                moe.top_k,
                ExpertTerms { biased: moe.biases, weighted: !moe.weighted_input },
            ))?,
            few: FewExperts::new(gpu, &moe, options.max_rows, options.precision(gpu))?,
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

    /// Returns the choice of the current layer.
    pub(super) fn choice(&self) -> ChoiceBuffer<'_> {
        ChoiceBuffer { kind: ChoiceKind::Experts, buffer: &self.experts, stride: self.config.top_k as usize }
    }

    /// Returns the slope of a gate's sigmoid, and the limit of gates and ups.
    fn alpha_and_limit(&self) -> (f32, f32) {
        match self.config.activation {
            Activation::Silu => (1.0, 0.0),
            Activation::LimitedSilu { limit } => (1.0, limit),
            Activation::LimitedSwiglu { alpha, limit } => (alpha, limit),
        }
    }

    fn glu_params(&self, rows: u32, inner: u32) -> GluParams {
        let (alpha, limit) = self.alpha_and_limit();
        GluParams { rows, inner, out_stride: inner, alpha, limit }
    }
}

impl MoeState {
    /// Records the norm of all rows, and the experts, whose outputs are added to the residual.
    pub(super) fn record(
        &self,
        ctx: &mut Ctx<'_>,
        norm: Option<&Buf<f32>>,
        moe: &Moe,
    ) -> Result<(), ModelError> {
        let (rows, kernels) = (ctx.rows(), &ctx.ops.kernels);
        let few = self.few.serves(kernels, moe.experts.matrices(), rows);
        // Router and experts of few rows norm them on the way in; a shared expert would be a third.
        let inside = few && moe.shared.is_none() && moe.router.norms(kernels, rows, Precision::EXACT);
        let (x, norm) = ctx.normed(norm, inside);
        self.route(ctx, moe, x, norm)?;
        if few {
            self.few(ctx, &moe.experts, x, norm)?;
        } else {
            for first in (0..rows).step_by(self.portion as usize) {
                self.routed(ctx, &moe.experts, x, first..rows.min(first + self.portion))?;
            }
        }
        match &moe.shared {
            Some(shared) => self.shared_expert(ctx, shared, x),
            None => Ok(()),
        }
    }

    /// Records the routing, which selects the experts and weights of each row.
    fn route(
        &self,
        ctx: &mut Ctx<'_>,
        moe: &Moe,
        x: &Buf<f32>,
        norm: Option<Norm<'_>>,
    ) -> Result<(), ModelError> {
        let (rows, tokens) = (ctx.rows(), ctx.tokens);
        // Routing depends on small differences: logits are exact.
        let (precision, epilogue) = (Precision::EXACT, Epilogue::Store);
        let to = ctx.product(x, &self.logits, self.config.num_experts);
        ctx.matmul(&moe.router, &Product { precision, epilogue, norm, ..to })?;
        let params = MoeRouteParams { rows, scale: self.config.router.scale };
        let hashed = moe.table.as_ref().zip(self.route_hashed.as_ref());
        let (table, pipeline) = hashed.unwrap_or((tokens, &self.route));
        let buffers = MoeRouteBuffers {
            logits: self.logits.bind(),
            correction: moe.correction.bind(),
            tokens: tokens.bind(),
            table: table.bind(),
            experts: self.experts.bind(),
            weights: self.weights.bind(),
            // Without a bias the kernel reads none.
            bias: moe.router_bias.as_ref().unwrap_or(&moe.correction).bind(),
        };
        ctx.pass.dispatch(pipeline, &params, buffers);
        Ok(())
    }

    /// Records the routed experts of all rows, pair by pair, and adds their outputs to the residual.
    fn few(
        &self,
        ctx: &mut Ctx<'_>,
        experts: &Experts,
        x: &Buf<f32>,
        norm: Option<Norm<'_>>,
    ) -> Result<(), ModelError> {
        let (alpha, limit) = self.alpha_and_limit();
        let rows = Product { norm, ..ctx.product(x, ctx.block_out, ctx.config.hidden_size) };
        let (ids, factors) = (self.experts.bind(), self.weights.bind());
        let pairs = FewPairs { rows, experts: ids, factors, biases: self.biases(experts), alpha, limit };
        self.few.record(&mut ctx.ops.kernels, ctx.pass, experts.matrices(), pairs)
    }

    /// Returns the biases of gates and ups, and of downs. If the experts have none, returns buffers of arbitrary floats.
    fn biases(&self, experts: &Experts) -> [Bind<f32>; 2] {
        match &experts.biases {
            Some(biases) => biases.each_ref().map(Buf::bind),
            None => [self.logits.bind(), self.logits.bind()],
        }
    }

    /// Records the routed experts of `rows`, and adds their output to the residual.
    fn routed(
        &self,
        ctx: &mut Ctx<'_>,
        experts: &Experts,
        x: &Buf<f32>,
        rows: Range<u32>,
    ) -> Result<(), ModelError> {
        let MoeConfig { top_k, inner_size, .. } = self.config;
        let hidden = ctx.config.hidden_size;
        let (count, pairs) = (rows.end - rows.start, (rows.end - rows.start) * top_k);
        let first = rows.start as usize;
        let of_rows = |buffer: &Buf<f32>, width: u32| buffer.bind_from(first * width as usize);
        let (ids, weights) = (self.experts.bind_from(first * top_k as usize), of_rows(&self.weights, top_k));

        let gate_up = Vectors {
            x: of_rows(x, hidden),
            x_stride: hidden,
            y: self.gate_up.bind(),
            y_stride: 2 * inner_size,
            y_offset: 0,
        };
        let routes = self.sorted(ctx, &experts.gate_up, pairs, &ids, top_k);
        experts.gate_up.multiply_routed(&mut ctx.ops.kernels, ctx.pass, &gate_up, &routes)?;
        let [gate_up_bias, down_bias] = self.biases(experts);
        let params = self.glu_params(pairs, inner_size);
        let buffers = GluBuffers {
            x: self.gate_up.bind(),
            experts: ids.clone(),
            weights: weights.clone(),
            biases: gate_up_bias,
            out: self.inner.bind(),
        };
        ctx.pass.dispatch(&self.glu, &params, buffers);

        let down = Vectors {
            x: self.inner.bind(),
            x_stride: inner_size,
            y: self.out.bind(),
            y_stride: hidden,
            y_offset: 0,
        };
        let route = experts.down.pair_kernel(&ctx.ops.kernels, pairs, ctx.ops.precision);
        let routes = match route.tile_rows() == routes.route.tile_rows() {
            true => RoutedPairs { x_div: 1, route, ..routes },
            false => self.sorted(ctx, &experts.down, pairs, &ids, 1),
        };
        experts.down.multiply_routed(&mut ctx.ops.kernels, ctx.pass, &down, &routes)?;
        let params = MoeCombineParams { rows: count, width: hidden };
        let buffers = MoeCombineBuffers {
            x: self.out.bind(),
            experts: ids,
            weights,
            biases: down_bias,
            y: of_rows(ctx.block_out, hidden),
        };
        ctx.pass.dispatch(&self.combine, &params, buffers);
        Ok(())
    }

    /// Records the sort of pairs by expert, for products with `matrices`.
    fn sorted(
        &self,
        ctx: &mut Ctx<'_>,
        matrices: &Matrix,
        pairs: u32,
        experts: &Bind<u32>,
        x_div: u32,
    ) -> RoutedPairs<'_> {
        let num_experts = self.config.num_experts;
        let route = matrices.pair_kernel(&ctx.ops.kernels, pairs, ctx.ops.precision);
        let tile = route.tile_rows();
        let max_tiles = moe_sort::max_tiles(pairs, num_experts, tile);
        let params = MoeSortParams { pairs, tile, max_tiles };
        let (tiles, order) = (&self.tiles, &self.order);
        let buffers = MoeSortBuffers { experts: experts.clone(), tiles: tiles.bind(), order: order.bind() };
        ctx.pass.dispatch(&self.sort, &params, buffers);
        let portions = ctx.rows().div_ceil(self.portion);
        RoutedPairs { tiles, order, pairs, route, max_tiles, x_div, portions }
    }

    fn shared_expert(
        &self,
        ctx: &mut Ctx<'_>,
        shared: &SharedExpert,
        x: &Buf<f32>,
    ) -> Result<(), ModelError> {
        let (rows, width) = (ctx.rows(), shared.width);
        ctx.store_product(&shared.gate_up, x, &self.gate_up, 2 * width)?;
        let params = self.glu_params(rows, width);
        // No row has an expert of its own or a weight here.
        let unused = self.weights.bind();
        let buffers = GluBuffers {
            x: self.gate_up.bind(),
            experts: self.experts.bind(),
            weights: unused.clone(),
            biases: unused,
            out: self.inner.bind(),
        };
        ctx.pass.dispatch(&self.glu_shared, &params, buffers);
        let hidden = ctx.config.hidden_size;
        ctx.add_product(&shared.down, &self.inner, ctx.block_out, hidden)
    }
}
