//! Compiled matmuls, the division of their work on a device, and the buffers between their dispatches.

use std::sync::{Arc, Mutex, PoisonError};

use attn_kernels::gpu::{Bind, Buf, Gpu, Pass, Pipeline};
use attn_kernels::profile::{DeviceProfile, Tuning};
use attn_kernels::{Variant, WINDOW_BYTES};
use rustc_hash::FxHashMap;

use super::Product;
use crate::ModelError;
use crate::host_weights::{Plane, WeightStream};
use crate::kernel::expert_gate_up::{self, Experts};
use crate::kernel::matmul::{self, Epilogue, Loads, Rows, Tiling};
use crate::kernel::matmul_coop::{self, Activations, CoopTile, MAX_PARTIALS, TilePlan};
use crate::kernel::quantize_rows::{self, Input, QuantizeRowsBuffers, QuantizeRowsParams};
use crate::kernel::round_rows::{self, RoundRowsBuffers, RoundRowsParams};
use crate::kernel::{expert_down, matmul_int8, matmul_int8_tile, matmul_tile, split_sum};
use crate::pack::{BLOCK, Format};

/// Roundings that a product may apply to its input.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Precision {
    /// f16, for cooperative matrices.
    pub(crate) f16: bool,
    /// 8-bit codes, for integer dot products with weights that are codes too.
    pub(crate) int8: bool,
    /// Whether a row's result must not depend on other rows.
    pub(crate) invariant: bool,
}

impl Precision {
    /// Activations stay f32.
    pub(crate) const EXACT: Self = Self { f16: false, int8: false, invariant: true };

    /// Whether products may use codes. If there are cooperative matrices, only products of few rows do, and none if a row must
    /// not depend on others.
    pub(super) fn codes(self) -> bool {
        self.int8 && !(self.f16 && self.invariant)
    }

    /// Returns the maximum number of rows that count as few for products of codes.
    pub(super) fn max_few_rows(self, tuning: &Tuning) -> u32 {
        if self.f16 { tuning.coded_rows } else { tuning.few_coded_rows }
    }
}

/// Compiled matmuls of a device.
#[derive(Debug)]
pub(crate) struct Kernels {
    gpu: Arc<Gpu>,
    pub(super) scratch: Scratch,
    /// Pipelines by key, and by whether they read weights from images.
    pipelines: FxHashMap<(Key, bool), Arc<Pipeline>>,
    /// Slots for weights on the host, if there are any.
    pub(crate) stream: Option<WeightStream>,
    /// Plans made so far: a step uses each several times.
    plans: Mutex<FxHashMap<PlanKey, TilePlan>>,
}

/// Everything that a plan depends on: the shape of the product, its number of parts, and whether results must not depend on rows.
type PlanKey = ([u32; 3], u32, bool);

/// Key of a matmul: everything that it is compiled for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Key {
    /// `matmul` or `matmul_tile`: blocks along k, and whether it applies a norm.
    Exact { format: Format, epilogue: Epilogue, exact: Exact, blocks: u32, norm: bool },
    /// `matmul` or `matmul_tile` with several matrices.
    Several { rows: Rows, format: Format, exact: Exact, blocks: u32 },
    /// `matmul_int8`
    Codes { format: Format, epilogue: Epilogue, tiling: matmul_int8::CodeTiling },
    /// `matmul_int8_tile`
    CodesTile { format: Format, epilogue: Epilogue },
    /// `expert_gate_up`
    ExpertGateUp { format: Format, experts: Experts },
    /// `expert_down`
    ExpertDown { format: Format, experts: Experts },
    /// `quantize_rows`
    Quantize { input: Input },
    /// `round_rows`
    Round { input: Input },
    /// `matmul_coop` with several matrices, by tiles of `moe_sort`.
    CoopRouted { format: Format, activations: Activations, tile: CoopTile },
    /// `matmul_coop`
    Coop { format: Format, epilogue: Epilogue, activations: Activations, tile: CoopTile },
    /// `split_sum`
    Sum { epilogue: Epilogue },
}

/// Kernel of a product in f32. Results do not depend on the choice.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Exact {
    /// `matmul`
    Lanes(Tiling),
    /// `matmul_tile`
    Tile(matmul_tile::Tile),
}

impl Exact {
    /// Returns the rows of a workgroup.
    pub(crate) fn rows(self) -> u32 {
        match self {
            Self::Lanes(tiling) => tiling.rows,
            Self::Tile(tile) => tile.rows(),
        }
    }

    /// Returns how its lanes load activations.
    pub(crate) fn loads(self) -> Loads {
        match self {
            Self::Lanes(tiling) => tiling.loads,
            Self::Tile(_) => Loads::Uniform,
        }
    }

    /// Returns the variant of the kernel that reads activations through windows, and the number of rows of a dispatch.
    /// There is one only if the kernel broadcasts activations and a window holds a row of `width`. One window has all
    /// rows if it holds a tile, and otherwise each row of a tile has one. A dispatch has whole tiles, since lanes of
    /// empty rows cost as much.
    pub(crate) fn windowed(self, rows: u32, width: u32) -> (Self, u32) {
        let held = WINDOW_BYTES / 4 / width;
        match self {
            Self::Lanes(tiling) if tiling.loads == Loads::Broadcast && held >= tiling.rows => {
                (Self::Lanes(tiling.loads(Loads::Window)), held / tiling.rows * tiling.rows)
            }
            Self::Lanes(tiling) if tiling.loads == Loads::Broadcast && held > 0 => {
                (Self::Lanes(tiling.loads(Loads::Windows)), tiling.rows)
            }
            whole => (whole, rows.max(1)),
        }
    }

    /// Whether a product should apply the norm of its rows.
    pub(crate) fn norms(self) -> bool {
        matches!(self, Self::Lanes(tiling) if tiling.norms())
    }
}

/// Buffers between the dispatches of a product.
#[derive(Debug)]
pub(super) struct Scratch {
    /// Activations as codes, `[rows, blocks, 2]`, and their scales, `[rows, blocks]`.
    pub(super) codes: Buf<[u32; 4]>,
    pub(super) scales: Buf<[f32; 2]>,
    /// Activations as f16, `[rows, blocks, 8]`.
    pub(super) halves: Buf<[u32; 2]>,
    /// Sums of splits along k.
    pub(super) partials: Buf<f32>,
}

/// The largest products of a model.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MaxProduct {
    pub(crate) rows: u32,
    /// Number of input features.
    pub(crate) width: u32,
    /// Maximum number of input features of products after a norm.
    pub(crate) normed_width: u32,
    /// Number of input features of all experts of a row.
    pub(crate) routed_width: u32,
    /// Maximum number of normed rows whose experts are multiplied pair by pair.
    pub(crate) expert_rows: u32,
    pub(crate) precision: Precision,
}

/// Maximum number of bytes of activations in f16 without a norm; further rows are rounded when they are read.
const MAX_HALVES: usize = 128 << 20;

impl Kernels {
    /// Creates kernels for products of up to `max`.
    pub(crate) fn new(
        gpu: &Arc<Gpu>,
        max: MaxProduct,
        stream: Option<WeightStream>,
    ) -> Result<Self, ModelError> {
        let MaxProduct { rows, width, normed_width, routed_width, expert_rows, precision } = max;
        let expert_blocks = rows.min(expert_rows) as usize * normed_width.div_ceil(32) as usize;
        let row_quads = |width: u32| width.div_ceil(32) as usize * 8;
        let plain =
            (MAX_HALVES / size_of::<[u32; 2]>()).min(rows as usize * row_quads(width.max(routed_width)));
        let halves = if precision.f16 { plain.max(rows as usize * row_quads(normed_width)) } else { 1 };
        // With cooperative matrices only few rows go through codes.
        let rows = if precision.f16 { rows.min(precision.max_few_rows(&gpu.profile().tuning)) } else { rows };
        let blocks = match precision.int8 {
            true => expert_blocks.max(rows as usize * (width as usize).div_ceil(BLOCK)),
            false => 1,
        };
        let scratch = Scratch {
            codes: gpu.buffer("codes", blocks * 2)?,
            scales: gpu.buffer("code_scales", blocks)?,
            halves: gpu.buffer("halves", halves)?,
            partials: gpu.buffer("split_partials", if precision.f16 { MAX_PARTIALS } else { 1 })?,
        };
        Ok(Self {
            gpu: Arc::clone(gpu),
            scratch,
            pipelines: FxHashMap::default(),
            stream,
            plans: Mutex::default(),
        })
    }

    /// Returns the binding of a plane.
    pub(crate) fn plane<T>(&self, plane: &Plane<T>) -> Bind<T> {
        plane.bind(self.stream.as_ref())
    }

    /// Records copies of weights that overlap with the product that is recorded next, which reads `bytes` bytes of weights.
    pub(crate) fn beside(&mut self, pass: &mut Pass, bytes: u64) {
        if let Some(stream) = &mut self.stream {
            stream.beside(pass, bytes);
        }
    }

    /// Whether the buffer of codes has room for `rows` rows of `blocks` blocks.
    pub(super) fn holds_codes(&self, rows: u32, blocks: u32) -> bool {
        rows as usize * blocks as usize <= self.scratch.scales.len()
    }

    /// Whether the buffer of f16 has room for `rows` rows of `blocks` blocks.
    pub(super) fn holds_halves(&self, rows: u32, blocks: u32) -> bool {
        rows as usize * blocks as usize * 8 <= self.scratch.halves.len()
    }

    /// Plans a product of `[rows, cols, blocks]` with cooperative matrices.
    pub(super) fn plan(&self, shape: [u32; 3], epilogue: Epilogue, precision: Precision) -> TilePlan {
        let plan = if precision.invariant { TilePlan::invariant } else { TilePlan::fastest };
        let key = (shape, epilogue.parts(), precision.invariant);
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        *plans
            .entry(key)
            .or_insert_with(|| plan(self.profile(), shape, epilogue, self.scratch.partials.len()))
    }

    /// Returns the device profile for the choice of kernels.
    pub(crate) fn profile(&self) -> &DeviceProfile {
        self.gpu.profile()
    }

    /// Records the quantisation of a product's rows, with a norm if the product has one.
    pub(super) fn quantize(
        &mut self,
        pass: &mut Pass,
        product: &Product<'_>,
        blocks: u32,
        width: u32,
    ) -> Result<(), ModelError> {
        let norm = product.norm;
        let params = QuantizeRowsParams {
            rows: product.rows,
            blocks,
            x_stride: width / 4,
            eps: norm.map_or(0.0, |norm| norm.eps),
        };
        let pipeline = self.pipeline(Key::Quantize { input: input(norm.as_ref()) })?;
        let Scratch { codes, scales, .. } = &self.scratch;
        let buffers = QuantizeRowsBuffers {
            x: product.x.bind(),
            codes: codes.bind(),
            scales: scales.bind(),
            weight: norm.map(|norm| norm.weight.bind()),
        };
        pass.dispatch(&pipeline, &params, buffers);
        Ok(())
    }

    /// Prepares the input rows of `matmul_coop`, and returns their stride in vec4. The rows are rounded to f16 beforehand
    /// if there is a norm, or if products read so many elements, `elements_read` in all, that the rounding pays.
    pub(crate) fn coop_rows(
        &mut self,
        pass: &mut Pass,
        x: Bind<f32>,
        params: &RoundRowsParams,
        norm: Option<&Buf<f32>>,
        elements_read: u64,
    ) -> Result<(Bind<f32>, u32, Activations), ModelError> {
        let worth = elements_read >= self.profile().tuning.worth_rounding
            && self.holds_halves(params.rows, params.blocks);
        if norm.is_none() && !worth {
            return Ok((x, params.x_stride, Activations::F32));
        }
        let pipeline = self.pipeline(Key::Round { input: input(norm.as_ref()) })?;
        let buffers = RoundRowsBuffers { x, halves: self.scratch.halves.bind(), weight: norm.map(Buf::bind) };
        pass.dispatch(&pipeline, params, buffers);
        Ok((self.scratch.halves.bind().cast(), params.blocks * 8, Activations::F16))
    }

    /// Returns the fastest f32 kernel that passed the driver's self-test, for products of `[rows, cols, blocks]` with
    /// `matrices` matrices of a format. `cols` are the columns of one part of `epilogue`.
    pub(crate) fn exact(&self, format: Format, shape: [u32; 3], epilogue: Epilogue, matrices: u32) -> Exact {
        let fastest = self.fastest_exact(shape, epilogue, matrices);
        if self.profile().verdicts.is_empty() {
            return fastest;
        }
        let ([rows, _, blocks], parts) = (shape, epilogue.parts());
        let others = match self.profile().software {
            true => [Exact::Lanes(Tiling::for_cpu(rows, parts, false)), fastest],
            false => [
                Exact::Lanes(Tiling::for_gpu(rows, parts, blocks)),
                Exact::Tile(matmul_tile::Tile::choose(self.profile(), epilogue, rows, u64::MAX)),
            ],
        };
        let runs = |exact: &Exact| {
            let windowed = exact.windowed(rows, blocks * 32).0;
            [(*exact, false), (*exact, exact.norms()), (windowed, false)].into_iter().all(|(exact, norm)| {
                self.right(epilogue.parts(), |epilogue| match matrices {
                    1 => Key::Exact { format, epilogue, exact, blocks, norm },
                    _ => Key::Several { rows: Rows::Routed, format, exact, blocks },
                })
            })
        };
        [fastest].into_iter().chain(others).find(runs).unwrap_or(fastest)
    }

    fn fastest_exact(&self, [rows, cols, blocks]: [u32; 3], epilogue: Epilogue, matrices: u32) -> Exact {
        let parts = epilogue.parts();
        let profile = self.profile();
        if profile.software {
            return Exact::Lanes(Tiling::for_cpu(rows, parts, profile.broadcasts()));
        }
        let tuning = &profile.tuning;
        let lanes = Tiling::for_gpu(rows, parts, blocks);
        let results = u64::from(rows) * u64::from(cols * parts) * u64::from(matrices);
        let tile = matmul_tile::Tile::choose(profile, epilogue, rows, results);
        // Lanes that cannot share k have nothing to win from few rows but that no tile of theirs is empty, which experts have.
        let (many, shares_k) = (rows > tuning.few_rows, lanes.slices > 1);
        match many && (results >= tile.filled(tuning) || !shares_k) || !shares_k && matrices == 1 {
            true => Exact::Tile(tile),
            false => Exact::Lanes(lanes),
        }
    }

    /// Returns the pipeline of a key, which reads weights from buffers, if any. Each pipeline is compiled once.
    pub(crate) fn pipeline(&mut self, key: Key) -> Result<Arc<Pipeline>, ModelError> {
        self.compiled(key, false)
    }

    /// Returns the pipeline of a key that reads planes of this kind.
    pub(crate) fn pipeline_of(
        &mut self,
        key: Key,
        quants: &Plane<[u32; 4]>,
    ) -> Result<Arc<Pipeline>, ModelError> {
        self.compiled(key, quants.is_image())
    }

    fn compiled(&mut self, key: Key, images: bool) -> Result<Arc<Pipeline>, ModelError> {
        if let Some(pipeline) = self.pipelines.get(&(key, images)) {
            return Ok(Arc::clone(pipeline));
        }
        let variant = self.variant(key);
        let variant = if images { matmul::from_images(variant) } else { variant };
        let pipeline = self.gpu.pipeline(&variant)?;
        self.pipelines.insert((key, images), Arc::clone(&pipeline));
        Ok(pipeline)
    }

    pub(super) fn variant(&self, key: Key) -> Variant {
        let profile = self.profile();
        match key {
            Key::Exact { format, epilogue, exact: Exact::Lanes(tiling), blocks, norm } => {
                let of = |level| matmul::variant(format, epilogue, tiling, blocks, level);
                if norm { profile.best(|level| of(Some(level))) } else { of(None) }
            }
            Key::Exact { format, epilogue, exact: Exact::Tile(tile), .. } => {
                matmul_tile::variant(format, epilogue, tile)
            }
            Key::Several { rows, format, exact: Exact::Lanes(tiling), blocks } => {
                matmul::several(rows, format, tiling, blocks)
            }
            Key::Several { rows, format, exact: Exact::Tile(tile), .. } => {
                matmul_tile::several(rows, format, tile)
            }
            Key::Codes { format, epilogue, tiling } => matmul_int8::variant(format, epilogue, tiling),
            Key::CodesTile { format, epilogue } => {
                let slices = matmul_int8::slices(epilogue, profile.workgroup_lanes);
                let tile = matmul_tile::Tile::coded(profile.registers);
                matmul_int8_tile::variant(format, epilogue, slices, tile)
            }
            Key::ExpertGateUp { format, experts } => {
                expert_gate_up::variant(format, experts, profile.registers)
            }
            Key::ExpertDown { format, experts } => expert_down::variant(format, experts, profile.registers),
            Key::Quantize { input } => profile.best(|level| quantize_rows::variant(input, level)),
            Key::Round { input } => profile.best(|level| round_rows::variant(input, level)),
            Key::CoopRouted { format, activations, tile } => matmul_coop::routed(format, activations, tile),
            Key::Coop { format, epilogue, activations, tile } => {
                matmul_coop::variant(format, epilogue, activations, tile)
            }
            Key::Sum { epilogue } => split_sum::variant(epilogue),
        }
    }
}

/// Returns the form of a product's input, normed or plain.
fn input<T>(norm: Option<&T>) -> Input {
    norm.map_or(Input::Plain, |_| Input::Normed)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A window is 64 KiB: it holds 28 rows of 576, which make three tiles of eight, but not one row of 20,000, and no tile of
    /// rows of 4,096.
    #[test]
    fn windows_hold_whole_tiles_or_a_row() {
        let rows = |rows, width| match Exact::Lanes(Tiling::for_cpu(rows, 1, true)).windowed(rows, width) {
            (Exact::Lanes(tiling), together) => (tiling.loads, together),
            (Exact::Tile(_), _) => unreachable!("lanes stay lanes"),
        };
        let (broadcast, window, windows) = (Loads::Broadcast, Loads::Window, Loads::Windows);
        assert_eq!(
            [rows(1, 576), rows(1, 14_336), rows(1, 20_000)],
            [(window, 28), (window, 1), (broadcast, 1)]
        );
        assert_eq!(
            [rows(3, 576), rows(3, 4_096), rows(3, 14_336)],
            [(window, 28), (window, 4), (windows, 4)]
        );
        assert_eq!([rows(512, 576), rows(512, 2_048)], [(window, 24), (window, 8)]);
        assert_eq!([rows(512, 4_096), rows(512, 20_000)], [(windows, 8), (broadcast, 512)]);
    }
}
