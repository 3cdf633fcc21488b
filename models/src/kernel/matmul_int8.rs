//! Quantised matrix times few rows of activations in codes of 8 bits, by integer dot products of four.
//!
//! A row's result depends on the matrix alone, not on the rows beside it: [`matmul_int8_tile`](super::matmul_int8_tile) adds
//! in the same order.

use attn_kernels::profile::Registers;
use attn_kernels::{Kernel, Params, Variant, bindings, params};

use super::matmul::Epilogue;

/// The kernel; [`MatmulInt8Buffers`] lists its bindings.
pub static KERNEL: Kernel = Kernel {
    name: "matmul_int8",
    role: attn_kernels::Role::Dense,
    wgsl: include_str!("../../wgsl/matmul_int8.wgsl"),
    modules: &[super::MODULES],
    params: MatmulInt8Params::LAYOUT,
    bindings: MatmulInt8Buffers::BINDINGS,
};

params! {
    /// Uniform parameters.
    pub struct MatmulInt8Params {
        /// Rows of x.
        pub rows: u32,
        /// Columns of one part.
        pub cols: u32,
        /// Blocks of 32 along k.
        pub blocks: u32,
        /// f32 from row to row of y.
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

/// Maximum number of rows of a tile; more rows take several, and read the weights as often.
pub const MAX_ROWS: u32 = 8;

/// Lanes along columns: eight make a cache line of blocks.
const COLS: u32 = 8;

/// Slices that k is cut into on a device whose workgroups have at most `max_lanes` lanes. The order of sums depends on it, so
/// it is the same for every number of rows.
#[must_use]
pub fn slices(epilogue: Epilogue, max_lanes: u32) -> u32 {
    // Two parts are twice the loads of a lane.
    let wanted = if epilogue.module().1 == 2 { 32 } else { 64 };
    wanted.min(max_lanes / COLS)
}

/// Division of the work among lanes. Results do not depend on it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Tiling {
    /// Rows of a tile: 1, 2, 4 or 8.
    pub rows: u32,
    /// Columns of a lane in each part.
    pub wide: u32,
    /// Blocks of a column that a lane loads at a time.
    pub batch: u32,
    /// Lanes along k, from [`slices`].
    pub slices: u32,
}

impl Tiling {
    /// The tiling for `rows` rows and lanes with `registers`, with `slices` from [`slices`].
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

/// The kernel for one storage type of weights, an epilogue and a tiling.
#[must_use]
pub fn variant(weights: &'static str, epilogue: Epilogue, tiling: Tiling) -> Variant {
    let (module, parts) = epilogue.module();
    let cols_per_lane = tiling.wide * parts;
    let suits = |registers| Tiling::for_rows(tiling.rows, epilogue, tiling.slices, registers) == tiling;
    let registers = match [Registers::Few, Registers::Many].map(suits) {
        [true, false] => Some(Registers::Few),
        [false, true] => Some(Registers::Many),
        _ => None,
    };
    Variant { registers, ..Variant::new(&KERNEL) }
        .module("weights", weights)
        .module("epilogue", module)
        .size("ROWS", tiling.rows)
        .size("PARTS", parts)
        .size("WIDE", tiling.wide)
        .size("COLS", COLS)
        .size("SLICES", tiling.slices)
        .size("BATCH", tiling.batch)
        .size("COLS_PER_LANE", cols_per_lane)
        .size("SUMS", cols_per_lane * tiling.rows)
}

/// Workgroups for `rows` rows and `cols` columns of one part.
#[must_use]
pub fn grid(tiling: Tiling, rows: u32, cols: u32) -> [u32; 3] {
    [cols.div_ceil(COLS * tiling.wide), rows.div_ceil(tiling.rows), 1]
}
