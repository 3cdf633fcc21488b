//! Multiplies a quantised matrix by few rows of activations in codes of 8 bits, with integer dot products of four codes.
//!
//! A row's result depends on the matrix alone, not on other rows: [`matmul_int8_tile`](super::matmul_int8_tile) adds in the
//! same order.

use crate::pack::Format;
use attn_kernels::declare::{Listed, Sizes};
use attn_kernels::profile::DeviceProfile;
use attn_kernels::profile::Registers;
use attn_kernels::slot::{self, Number};
use attn_kernels::{Variant, bindings, kernel, params};

use super::matmul::EPILOGUE;
use super::matmul::Epilogue;
use super::matmul::WEIGHTS;

kernel! {
    /// The kernel; [`MatmulInt8Buffers`] lists its bindings.
    "matmul_int8"(MatmulInt8Params, MatmulInt8Buffers): Dense,
    grid: grid,
    modules: [super::MODULES],
    listed: listed,
    variants: "nine encodings of at most 8 bits; store, add, silu_mul; 1, 2, 4 or 8 rows; fewer columns a lane for *few registers*",
    bytes: "the matrix once for each tile of rows; `1.25` per activation and workgroup along columns",
    cases: crate::self_test::matmul::matmul_int8,
}

fn listed(_: &Sizes) -> Listed {
    let of = |format, epilogue, rows, registers| {
        let slices = slices(epilogue, DeviceProfile::WEBGPU.workgroup_lanes);
        variant(format, epilogue, CodeTiling::for_rows(rows, epilogue, slices, registers))
    };
    let few = [
        ("q4k-add-8", of(Format::Q4K, Epilogue::Add, 8, Registers::Many)),
        ("q4k-silu_mul-2", of(Format::Q4K, Epilogue::SiluMul, 2, Registers::Many)),
        ("lean-q4k-add-8", of(Format::Q4K, Epilogue::Add, 8, Registers::Few)),
        ("lean-q4k-silu_mul-4", of(Format::Q4K, Epilogue::SiluMul, 4, Registers::Few)),
    ];
    let few = few.map(|(part, variant)| (part.to_owned(), variant));
    let one = Format::listed_codes(|format| of(format, Epilogue::Store, 1, Registers::Many));
    one.into_iter().chain(few).collect()
}

params! {
    /// Uniform parameters.
    pub struct MatmulInt8Params {
        /// Number of rows of x.
        pub rows: u32,
        /// Number of columns of one part.
        pub cols: u32,
        /// Number of blocks of 32 along k.
        pub blocks: u32,
        /// Number of f32 from one row of y to the next.
        pub y_stride: u32,
        /// First column of y.
        pub y_offset: u32,
    }
}

bindings! {
    /// Buffers of `matmul_int8`.
    pub struct MatmulInt8Buffers(MatmulInt8Params) {
        /// Codes of activations, `[rows, blocks, 2]`.
        read x: [u32; 4],
        /// Scale and scaled sum of each block of codes, `[rows, blocks]`.
        read scales: [f32; 2],
        /// Quants of the weights, in the layout of their format.
        read wq: [u32; 4],
        /// Scales of the weights, in the layout of their format.
        read ws: u32,
        /// Products, rows of `y_stride` f32, columns from `y_offset` on.
        write y: f32,
    }
}

/// Maximum number of rows of a tile. More rows need several tiles, each of which reads the weights again.
pub const MAX_ROWS: u32 = 8;

/// Number of lanes along columns: eight make a cache line of blocks.
const COLS: u32 = 8;

/// Number of slices along k on a device whose workgroups have at most `max_lanes` lanes. The order of sums depends on
/// the number of slices, so it is the same for every number of rows.
#[must_use]
pub fn slices(epilogue: Epilogue, max_lanes: u32) -> u32 {
    // Two parts are twice the loads of a lane.
    let wanted = if epilogue.parts() == 2 { 32 } else { 64 };
    wanted.min(max_lanes / COLS)
}

/// Division of the work among lanes. Results do not depend on it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CodeTiling {
    /// Number of rows of a tile: 1, 2, 4 or 8.
    pub rows: u32,
    /// Number of columns of a lane in each part.
    pub wide: u32,
    /// Number of blocks of a column that a lane loads at a time.
    pub batch: u32,
    /// Number of lanes along k, from [`slices`].
    pub slices: u32,
}

impl CodeTiling {
    /// The tiling for `rows` rows, on a device whose lanes have `registers`. The function [`slices`] returns `slices`.
    #[must_use]
    pub fn for_rows(rows: u32, epilogue: Epilogue, slices: u32, registers: Registers) -> Self {
        let parts = epilogue.parts();
        // Where a lane's columns are unpacked to bytes, those of one or two are what it has room for.
        let most = if registers == Registers::Few { MAX_ROWS / parts } else { MAX_ROWS };
        let rows = rows.next_power_of_two().min(most);
        // From times on an H200 at 4096 x 4096, 4096 x 2 x 14336 and 14336 x 4096.
        let (wide, batch) = match (registers, parts, rows) {
            (Registers::Few, 2, 4) => (1, 1),
            (Registers::Few, 1, 8) => (1, 2),
            (_, 2, 1 | 4) => (2, 1),
            (_, 2, 8) => (2, 2),
            (_, 2, _) => (1, 1),
            (_, _, 1) => (1, 2),
            (_, _, 8) => (4, 2),
            (_, _, _) => (2, 1),
        };
        Self { rows, wide, batch, slices }
    }
}

/// Number of blocks that are loaded at once.
pub(crate) const BATCH: Number = Number("BATCH");
/// Number of columns of a lane, in all parts.
pub(crate) const COLS_PER_LANE: Number = Number("COLS_PER_LANE");
/// Number of sums of a lane.
pub(crate) const SUMS: Number = Number("SUMS");

/// Returns the variant for one storage type of weights, an epilogue and a tiling.
#[must_use]
pub fn variant(weights: Format, epilogue: Epilogue, tiling: CodeTiling) -> Variant {
    let parts = epilogue.parts();
    let cols_per_lane = tiling.wide * parts;
    let suits = |registers| CodeTiling::for_rows(tiling.rows, epilogue, tiling.slices, registers) == tiling;
    let registers = match [Registers::Few, Registers::Many].map(suits) {
        [true, false] => Some(Registers::Few),
        [false, true] => Some(Registers::Many),
        _ => None,
    };
    Variant { registers, ..Variant::new(&KERNEL) }
        .set_data(WEIGHTS, weights, weights.label())
        .set(EPILOGUE, epilogue)
        .set(slot::ROWS, tiling.rows)
        .set(slot::PARTS, parts)
        .set(super::matmul::WIDE, tiling.wide)
        .set(super::matmul::COLS, COLS)
        .set(super::matmul::SLICES, tiling.slices)
        .set(BATCH, tiling.batch)
        .set(COLS_PER_LANE, cols_per_lane)
        .set(SUMS, cols_per_lane * tiling.rows)
}

fn grid(params: &MatmulInt8Params, variant: &Variant) -> [u32; 3] {
    let cols = COLS * variant.number(super::matmul::WIDE);
    [params.cols.div_ceil(cols), params.rows.div_ceil(variant.number(slot::ROWS)), 1]
}
