//! Quantised matrix times many rows of activations in codes of 8 bits: [`matmul_int8`] where no cooperative matrices run.

use attn_kernels::{Kernel, Variant};

use super::matmul::Epilogue;
use super::matmul_int8;

/// The kernel, with the parameters and bindings of [`matmul_int8`].
pub static KERNEL: Kernel = Kernel {
    name: "matmul_int8_tile",
    wgsl: include_str!("../../wgsl/matmul_int8_tile.wgsl"),
    ..matmul_int8::KERNEL
};

/// Rows and columns (of all parts) of a lane, and lanes along each.
const TALL: u32 = 4;
const WIDE: u32 = 8;
const ROW_LANES: u32 = 16;
const COL_LANES: u32 = 16;

/// The kernel for one storage type of weights and an epilogue, with `slices` from [`matmul_int8::slices`].
#[must_use]
pub fn variant(weights: &'static str, epilogue: Epilogue, slices: u32) -> Variant {
    let (module, parts) = epilogue.module();
    Variant::new(&KERNEL)
        .module("weights", weights)
        .module("epilogue", module)
        .size("TALL", TALL)
        .size("WIDE", WIDE)
        .size("ROW_LANES", ROW_LANES)
        .size("COL_LANES", COL_LANES)
        .size("PARTS", parts)
        .size("SUMS", TALL * WIDE)
        .size("SLICES", slices)
}

/// Workgroups for `rows` rows and `cols` columns of one part.
#[must_use]
pub fn grid(epilogue: Epilogue, rows: u32, cols: u32) -> [u32; 3] {
    let (_, parts) = epilogue.module();
    [cols.div_ceil(WIDE * COL_LANES / parts), rows.div_ceil(TALL * ROW_LANES), 1]
}
