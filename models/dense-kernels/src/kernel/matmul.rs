//! Multiplies a quantised matrix by one row or many.

use attn_kernels::declare::{Listed, Sizes, levels};
#[cfg(feature = "gpu")]
use attn_kernels::gpu::Bind;
use attn_kernels::slot::{self, Number, OneOf};
use attn_kernels::{Access, Level, Variant, bindings, kernel, params};

use crate::pack::Format;

kernel! {
    /// The kernel; [`MatmulBuffers`] lists its bindings.
    "matmul"(MatmulParams, MatmulBuffers): Dense,
    grid: grid,
    modules: [super::MODULES],
    listed: listed,
    variants: "all encodings; store, add, silu_mul; tilings; weights in buffers or images, x by all lanes, broadcast, through a window or a window a row; norm on the way in; several matrices: each of a row's vectors with its own, or routed pairs (and tiles, order)",
    bytes: "the matrix once for each tile of rows",
    cases: crate::self_test::matmul::matmul,
}

fn listed(_: &Sizes) -> Listed {
    let blocks = 64;
    let sliced = |parts| Tiling::for_gpu(1, parts, blocks);
    let of = |epilogue, tiling| variant(Format::Q4, epilogue, tiling, blocks, None);
    let windows = |rows, loads| from_images(of(Epilogue::Store, Tiling::for_cpu(rows, 1, true).loads(loads)));
    let several = |rows| several(rows, Format::Bf16, sliced(1), blocks);
    let few: [(&str, Variant); 10] = [
        ("q4-add", of(Epilogue::Add, sliced(1))),
        ("q4-gelu_mul", of(Epilogue::GeluMul, sliced(2))),
        ("q4-silu_mul", of(Epilogue::SiluMul, sliced(2))),
        ("q4-tall", of(Epilogue::Store, Tiling::for_gpu(256, 1, blocks))),
        ("q4-broadcast", of(Epilogue::Store, Tiling::for_cpu(256, 1, true))),
        ("q4-window", windows(256, Loads::Window)),
        ("q4-window-one", windows(1, Loads::Window)),
        ("q4-windows", windows(256, Loads::Windows)),
        ("each", several(Rows::Each)),
        ("routed", several(Rows::Routed)),
    ];
    let normed = levels(|level| {
        vec![("q4-normed".into(), variant(Format::Q4, Epilogue::Store, sliced(1), blocks, Some(level)))]
    });
    let stored = Format::listed(|format| variant(format, Epilogue::Store, sliced(1), blocks, None));
    let few = few.map(|(part, variant)| (part.to_owned(), variant));
    stored.into_iter().chain(few).chain(normed).collect()
}

params! {
    /// Uniform parameters.
    pub struct MatmulParams {
        /// Number of rows of x; for [`Rows::Routed`], number of tiles of [`moe_sort`](super::moe_sort).
        pub rows: u32,
        /// Number of columns of one part.
        pub cols: u32,
        /// Number of blocks of 32 along k.
        pub blocks: u32,
        /// Number of vec4 from one row of x to the next.
        pub x_stride: u32,
        /// Number of f32 from one row of y to the next.
        pub y_stride: u32,
        /// First column of y.
        pub y_offset: u32,
        /// Epsilon of the norm of the activations, if there is one.
        pub eps: f32,
        /// For several matrices: number of pairs that share a row of x ([`Rows::Routed`]), or number of vectors per
        /// row ([`Rows::Each`]).
        pub x_div: u32,
        /// Number of matrices side by side.
        pub matrices: u32,
        /// Index of the first matrix.
        pub first_matrix: u32,
        /// Number of blocks along k of a split; all blocks if `matmul_coop` does not split k.
        pub split_blocks: u32,
    }
}

impl MatmulParams {
    /// Parameters of a product of `rows` rows with one matrix of `cols` columns and `blocks` blocks along k, without
    /// splits along k. Rows of x and of y follow each other without gaps, and x is not normed.
    #[must_use]
    pub fn new([rows, cols, blocks]: [u32; 3]) -> Self {
        Self {
            rows,
            cols,
            blocks,
            x_stride: blocks * 8,
            y_stride: cols,
            y_offset: 0,
            eps: 0.0,
            x_div: 1,
            matrices: 1,
            first_matrix: 0,
            split_blocks: blocks,
        }
    }
}

bindings! {
    /// Buffers of `matmul`.
    pub struct MatmulBuffers(MatmulParams) {
        /// Activations, in rows of `x_stride` vectors of four; f16 in variants of `matmul_coop` for activations in f16.
        read x: f32,
        /// Quants of the weights, in the layout of their format.
        read wq: [u32; 4],
        /// Scales of the weights, in the layout of their format.
        read ws: u32,
        /// Products, rows of `y_stride` f32, columns from `y_offset` on.
        write y: f32,
        /// Weight of the RMS norm of the activations.
        read norm: f32 = None,
        /// Tiles of `moe_sort`, if rows go to experts.
        read tiles: [u32; 4] = None,
        /// Pairs of a row and an expert in the order of `moe_sort`.
        read order: u32 = None,
        /// Row 1 of the tile, if each row has a window of its own ([`Loads::Windows`]) and `x` is row 0.
        read x_1: f32 = None,
        /// Row 2 of the tile, if `x_1` is row 1.
        read x_2: f32 = None,
        /// Row 3 of the tile, if `x_1` is row 1.
        read x_3: f32 = None,
        /// Row 4 of the tile, if `x_1` is row 1.
        read x_4: f32 = None,
        /// Row 5 of the tile, if `x_1` is row 1.
        read x_5: f32 = None,
        /// Row 6 of the tile, if `x_1` is row 1.
        read x_6: f32 = None,
        /// Row 7 of the tile, if `x_1` is row 1.
        read x_7: f32 = None,
    }
}

#[cfg(feature = "gpu")]
impl MatmulBuffers {
    /// Buffers of a product without a norm, of all rows with one matrix.
    #[must_use]
    pub fn new(x: Bind<f32>, wq: Bind<[u32; 4]>, ws: Bind<u32>, y: Bind<f32>) -> Self {
        let [x_1, x_2, x_3, x_4, x_5, x_6, x_7] = [const { None }; WINDOWS - 1];
        let (norm, tiles, order) = (None, None, None);
        Self { x, wq, ws, y, norm, tiles, order, x_1, x_2, x_3, x_4, x_5, x_6, x_7 }
    }

    /// Sets the rows of a tile, for a kernel that sees each through a window of its own.
    #[must_use]
    pub fn rows(self, rows: [Bind<f32>; WINDOWS]) -> Self {
        let [x, rows @ ..] = rows;
        let [x_1, x_2, x_3, x_4, x_5, x_6, x_7] = rows.map(Some);
        Self { x, x_1, x_2, x_3, x_4, x_5, x_6, x_7, ..self }
    }
}

/// Assignment of rows to matrices.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Rows {
    /// Every row is multiplied by the same matrix.
    Plain,
    /// Each row has several vectors, and each vector its own matrix.
    Each,
    /// Each pair of a row and a matrix is multiplied, in tiles of [`moe_sort`](super::moe_sort).
    Routed,
}

impl Rows {
    /// Changes a variant for one matrix into a variant for this assignment.
    pub(super) fn apply(self, one: Variant) -> Variant {
        match self {
            Self::Plain => one,
            Self::Each => one.set(ROWS, self),
            Self::Routed => one.set(ROWS, self).with("tiles").with("order"),
        }
    }
}

/// Operations on a finished sum.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Epilogue {
    /// `y = sum`
    Store,
    /// `y += sum`
    Add,
    /// Two parts, gate and up: `y = silu(gate) * up`.
    SiluMul,
    /// Two parts, gate and up: `y = gelu(gate) * up`.
    GeluMul,
}

impl Epilogue {
    /// All epilogues.
    pub const ALL: [Self; 4] = [Self::Store, Self::Add, Self::SiluMul, Self::GeluMul];

    /// Number of matrix parts that the epilogue combines.
    #[must_use]
    pub fn parts(self) -> u32 {
        match self {
            Self::Store | Self::Add => 1,
            Self::SiluMul | Self::GeluMul => 2,
        }
    }
}

/// Division of the work. Results do not depend on it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Tiling {
    /// Number of rows per lane.
    pub rows: u32,
    /// Number of columns per lane and part.
    pub wide: u32,
    /// Number of lanes along columns.
    pub cols: u32,
    /// Number of lanes along k.
    pub slices: u32,
    /// Way in which lanes load activations.
    pub loads: Loads,
}

/// Ways in which the lanes of a product in f32 load activations. All but [`Uniform`](Self::Uniform) are for software
/// drivers, which execute a load once per lane: with these, eight lanes load a block together and exchange its
/// elements.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Loads {
    /// All lanes load from one address.
    Uniform,
    /// Eight lanes broadcast loads to each other.
    Broadcast,
    /// Eight lanes broadcast loads to each other; all rows of a dispatch are read through one [`Access::Window`].
    Window,
    /// Eight lanes broadcast loads to each other; each of at most [`WINDOWS`] rows of a dispatch has a window of its own.
    Windows,
}

/// Coding of weights.
pub(crate) const WEIGHTS: OneOf<Format> = OneOf::new("weights", Format::MODULES);
/// Operation on a finished sum.
pub(crate) const EPILOGUE: OneOf<Epilogue> = OneOf::new(
    "epilogue",
    &[
        (Epilogue::Store, "epilogue_store"),
        (Epilogue::Add, "epilogue_add"),
        (Epilogue::SiluMul, "epilogue_silu_mul"),
        (Epilogue::GeluMul, "epilogue_gelu_mul"),
    ],
);
/// Assignment of rows to matrices.
pub(crate) const ROWS: OneOf<Rows> = OneOf::new(
    "rows",
    &[(Rows::Plain, "rows_plain"), (Rows::Each, "rows_each"), (Rows::Routed, "rows_routed")],
);
/// Way in which activations are loaded; with `None`, they pass through a norm first.
pub(crate) const ACTIVATIONS: OneOf<Option<Loads>> = OneOf::new(
    "activations",
    &[
        (Some(Loads::Uniform), "x_uniform"),
        (Some(Loads::Broadcast), "x_broadcast"),
        (Some(Loads::Window), "x_window"),
        (Some(Loads::Windows), "x_windows"),
        (None, "x_normed"),
    ],
);
/// Whether sums are unrolled.
const SUMS_UNROLLED: OneOf<bool> = OneOf::new("sums", &[(false, "sums_loops"), (true, "sums_unrolled")]);
/// Whether weights are in images.
const IMAGES: OneOf<bool> = OneOf::new("planes", &[(false, "planes_buffers"), (true, "planes_images")]);

/// Number of rows of the largest tile of a software driver, each of which can have a window of its own.
pub const WINDOWS: usize = 8;

/// Number of lanes that compute the norm of a row in the kernels of GPUs. All kernels have the same number, so that
/// they sum in the same order.
pub const NORM_LANES: u32 = 256;

/// Maximum number of f32 that block sums may take in workgroup memory under WebGPU's default limits.
const MOST_SUMS: u32 = 3072;

impl Tiling {
    /// Whether a matmul of this tiling should norm its rows itself. Every workgroup norms its rows again, which costs
    /// more than a dispatch if it has more than one row.
    #[must_use]
    pub fn norms(&self) -> bool {
        self.rows == 1 && self.cols * self.slices == NORM_LANES
    }

    /// The tiling for `rows` rows of a matrix of `parts` parts and `blocks` blocks along k on a GPU.
    #[must_use]
    pub fn for_gpu(rows: u32, parts: u32, blocks: u32) -> Self {
        let gpu = |rows, cols, slices| Self { rows, wide: 1, cols, slices, loads: Loads::Uniform };
        if rows <= 64 {
            let tile = rows.next_power_of_two().min(4);
            // Block sums of all columns and rows of a workgroup meet in workgroup memory.
            let fits = |cols: &u32| blocks * cols * tile * parts <= MOST_SUMS;
            // One row: as many lanes along k as there are blocks, for the shortest chain of loads. Eight columns
            // still make full cache lines; rows of more blocks take fewer, as they have no other kernel for few rows.
            let widths: &[u32] = if tile == 1 { &[8, 4, 2, 1] } else { &[32, 16, 8, 4, 2, 1] };
            if let Some(cols) = widths.iter().copied().find(fits) {
                return gpu(tile, cols, NORM_LANES / cols);
            }
        }
        gpu(8, 64, 1)
    }

    /// The tiling for `rows` rows on a software driver, whose lanes run one after the other.
    #[must_use]
    pub fn for_cpu(rows: u32, parts: u32, broadcast: bool) -> Self {
        let rows = match rows {
            1 => 1,
            2..=4 => 4,
            _ => 8,
        };
        let wide = if rows == 1 && !broadcast { 2 } else { 4 / parts };
        let loads = if broadcast { Loads::Broadcast } else { Loads::Uniform };
        Self { rows, wide, cols: 16, slices: 1, loads }
    }

    /// The tiling with other loads.
    #[must_use]
    pub fn loads(self, loads: Loads) -> Self {
        Self { loads, ..self }
    }
}

/// Number of columns of a lane.
pub(crate) const WIDE: Number = Number("WIDE");
/// Lanes along columns.
pub(crate) const COLS: Number = Number("COLS");
/// Lanes along k.
pub(crate) const SLICES: Number = Number("SLICES");

/// Returns the variant for one storage type, epilogue and tiling of matrices of `blocks` blocks along k. `norm` puts an RMS norm
/// in front, for which the tiling must have [`NORM_LANES`] lanes.
#[must_use]
pub fn variant(
    weights: Format,
    epilogue: Epilogue,
    tiling: Tiling,
    blocks: u32,
    norm: Option<Level>,
) -> Variant {
    let parts = epilogue.parts();
    let sums = blocks * tiling.cols * tiling.rows * tiling.wide * parts;
    let variant = Variant::new(&KERNEL)
        .with_if("norm", norm.is_some())
        .set_data(WEIGHTS, weights, weights.label())
        .by_level(slot::REDUCE, norm.unwrap_or(Level::Baseline))
        .set(EPILOGUE, epilogue);
    let variant = match (norm, tiling.loads) {
        (Some(_), _) => variant.set(ACTIVATIONS, None),
        (None, loads) => loaded(variant.set(ACTIVATIONS, Some(loads)), loads),
    };
    variant
        .set(slot::ROWS, tiling.rows)
        .set(WIDE, tiling.wide)
        .set(slot::PARTS, parts)
        .set(COLS, tiling.cols)
        .set(SLICES, tiling.slices)
        .constant("SUMS", if tiling.slices == 1 { 1 } else { sums })
}

/// Returns the variant with the bindings and the form of sums that `loads` requires.
fn loaded(variant: Variant, loads: Loads) -> Variant {
    const ROWS: [&str; WINDOWS - 1] = ["x_1", "x_2", "x_3", "x_4", "x_5", "x_6", "x_7"];
    let window = |variant: Variant, name: &&str| variant.reading(name, Access::Window);
    let variant = match loads {
        Loads::Uniform => return variant,
        Loads::Broadcast => variant,
        Loads::Window => window(variant, &"x"),
        Loads::Windows => {
            let variant = ROWS.iter().fold(variant, |variant, name| variant.with(name));
            ["x"].iter().chain(&ROWS).fold(variant, window)
        }
    };
    variant.set(SUMS_UNROLLED, true).with_broadcasts()
}

/// Changes a variant so that it reads the weights from images, which software drivers read fastest.
#[must_use]
pub fn from_images(variant: Variant) -> Variant {
    let variant = variant.set(IMAGES, true).for_software();
    variant.reading("wq", Access::Image).reading("ws", Access::Image)
}

/// Returns the variant that multiplies rows by several matrices and stores the products.
#[must_use]
pub fn several(rows: Rows, weights: Format, tiling: Tiling, blocks: u32) -> Variant {
    rows.apply(variant(weights, Epilogue::Store, tiling, blocks, None))
}

fn grid(params: &MatmulParams, variant: &Variant) -> [u32; 3] {
    let cols = variant.number(COLS) * variant.number(WIDE);
    tiled_grid(params, variant, [variant.number(slot::ROWS), cols])
}

/// Returns the number of workgroups of `rows` rows and `cols` columns of one part each, for a product that is not split
/// along k.
pub(super) fn tiled_grid(params: &MatmulParams, variant: &Variant, [rows, cols]: [u32; 2]) -> [u32; 3] {
    let (columns, row_tiles) = (params.cols.div_ceil(cols), params.rows.div_ceil(rows));
    match variant.get(ROWS).unwrap_or(Rows::Plain) {
        Rows::Plain => [columns, row_tiles, 1],
        Rows::Each => [columns, row_tiles, params.matrices],
        Rows::Routed => [columns, params.rows, 1],
    }
}
