//! Selection of the kernels of a product, by its shape and rows, measured times, and verdicts of the self-test.

use attn_kernels::Level;

use super::{Exact, Kernels, Key, Matrix, Precision};
use crate::kernel::matmul::Epilogue;
use crate::kernel::matmul_coop::Activations;
use crate::kernel::matmul_int8;
use crate::kernel::matmul_tile::Tile;

/// Kernels of a product.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ProductKernels {
    /// f32, with `matmul` or `matmul_tile`.
    Exact(Exact),
    /// Codes of few rows, with `matmul_int8`.
    Codes(matmul_int8::CodeTiling),
    /// Codes of many rows, with `matmul_int8_tile`.
    CodesTile,
    /// f16, with `matmul_coop`.
    Coop,
}

/// Way in which a product is multiplied.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProductRoute {
    /// Level of adapter that the kernel needs.
    pub level: Level,
    /// The kernel and its division of the work, as reports write them.
    pub text: String,
}

impl Kernels {
    /// Whether the kernels of products with every epilogue of `parts` parts passed the driver's self-test.
    pub(crate) fn right(&self, parts: u32, key: impl Fn(Epilogue) -> Key) -> bool {
        let mut epilogues = Epilogue::ALL.into_iter().filter(|epilogue| epilogue.parts() == parts);
        epilogues.all(|epilogue| self.trusts(key(epilogue)))
    }

    /// Whether a kernel passed the driver's self-test, or no kernel was tested.
    pub(super) fn trusts(&self, key: Key) -> bool {
        self.profile().verdicts.is_empty() || self.profile().runs(&self.variant(key))
    }
}

impl Matrix {
    /// Selects the kernels for a product of `rows` rows.
    pub(super) fn route(&self, kernels: &Kernels, rows: u32, precision: Precision) -> ProductKernels {
        let cols = self.shards[0].cols;
        let exact = || ProductKernels::Exact(self.exact_kernel(kernels, rows));
        let profile = kernels.profile();
        let tuning = &profile.tuning;
        let small = u64::from(self.width) * u64::from(cols * self.parts) < tuning.small_weights;
        // Where rows must not depend on others, no number of them may change how one is rounded.
        if small && (rows <= tuning.small_rows || precision.invariant || !precision.f16) {
            return exact();
        }
        let codes = precision.codes() && self.format.has_codes() && kernels.holds_codes(rows, self.blocks);
        let few = rows <= precision.max_few_rows(tuning);
        let coop = precision.f16 && (precision.invariant || !(few && codes) && rows > 1);
        if coop && self.takes_matrices(kernels, rows, precision) {
            return ProductKernels::Coop;
        }
        // Tiles read the weights less often, but many rows alone make enough of them for a GPU.
        let results = u64::from(rows) * u64::from(cols * self.parts);
        let slices = matmul_int8::slices(self.epilogue(), profile.workgroup_lanes);
        let tiling = matmul_int8::CodeTiling::for_rows(rows, self.epilogue(), slices, profile.registers);
        let by_lanes = ProductKernels::Codes(tiling);
        let by_codes = match few || results < Tile::LARGE.filled(tuning) {
            true => [by_lanes, ProductKernels::CodesTile],
            false => [ProductKernels::CodesTile, by_lanes],
        };
        let mut by_codes = by_codes.into_iter().filter(|route| codes && self.takes_codes(kernels, *route));
        by_codes.next().unwrap_or_else(exact)
    }

    /// Describes the kernel of a product of `rows` rows, and how it divides the work.
    pub(crate) fn described_route(&self, kernels: &Kernels, rows: u32, precision: Precision) -> ProductRoute {
        let route = self.route(kernels, rows, precision);
        let level = if route == ProductKernels::Coop { Level::Coop } else { Level::Baseline };
        let text = match route {
            ProductKernels::Exact(Exact::Lanes(tiling)) => {
                format!("matmul {} x {}, {} slices", tiling.rows, tiling.cols * tiling.wide, tiling.slices)
            }
            ProductKernels::Exact(Exact::Tile(tile)) => {
                format!("matmul_tile {} x {}", tile.rows(), tile.cols())
            }
            ProductKernels::Codes(tiling) => {
                format!("matmul_int8 {} rows, {} slices", tiling.rows, tiling.slices)
            }
            ProductKernels::CodesTile => "matmul_int8_tile".to_owned(),
            ProductKernels::Coop => {
                let plan = kernels.plan([rows, self.shards[0].cols, self.blocks], self.epilogue(), precision);
                let splits = plan.splits(self.blocks);
                format!("matmul_coop {} x {}, {splits} splits", plan.tile.rows(), plan.tile.cols())
            }
        };
        ProductRoute { level, text }
    }

    /// Whether a product of `rows` rows can apply the norm of the rows.
    pub(crate) fn norms(&self, kernels: &Kernels, rows: u32, precision: Precision) -> bool {
        // A norm goes over whole blocks.
        self.width == self.blocks * 32
            && match self.route(kernels, rows, precision) {
                ProductKernels::Exact(exact) => exact.norms(),
                ProductKernels::Codes(_) | ProductKernels::CodesTile => true,
                ProductKernels::Coop => kernels.holds_halves(rows, self.blocks),
            }
    }

    /// Whether products with cooperative matrices passed the driver's self-test.
    fn takes_matrices(&self, kernels: &Kernels, rows: u32, precision: Precision) -> bool {
        let (format, shape) = (self.format, [rows, self.shards[0].cols, self.blocks]);
        let tile = kernels.plan(shape, self.epilogue(), precision).tile;
        [Activations::F16, Activations::F32].into_iter().all(|activations| {
            kernels.right(self.parts, |epilogue| Key::Coop { format, epilogue, activations, tile })
        })
    }

    /// Whether products of codes passed the driver's self-test.
    fn takes_codes(&self, kernels: &Kernels, route: ProductKernels) -> bool {
        let format = self.format;
        kernels.right(self.parts, |epilogue| match route {
            ProductKernels::Codes(tiling) => Key::Codes { format, epilogue, tiling },
            _ => Key::CodesTile { format, epilogue },
        })
    }
}
