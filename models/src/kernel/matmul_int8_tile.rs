//! Quantised matrix times many rows of activations in codes of 8 bits: [`matmul_int8`] where no cooperative matrices run.
//!
//! The tile of all products is [`Tile::LARGE`].

use attn_kernels::{Kernel, Variant};

use super::matmul::Epilogue;
use super::matmul_int8;
use super::matmul_tile::Tile;

/// The kernel, with the parameters and bindings of [`matmul_int8`].
pub static KERNEL: Kernel = Kernel {
    name: "matmul_int8_tile",
    wgsl: include_str!("../../wgsl/matmul_int8_tile.wgsl"),
    ..matmul_int8::KERNEL
};

/// The kernel for one storage type of weights and an epilogue, with `slices` from [`matmul_int8::slices`].
#[must_use]
pub fn variant(weights: &'static str, epilogue: Epilogue, slices: u32) -> Variant {
    let (module, parts) = epilogue.module();
    let tile = Tile::LARGE;
    Variant::new(&KERNEL)
        .module("weights", weights)
        .module("epilogue", module)
        .size("TALL", tile.tall)
        .size("WIDE", tile.wide)
        .size("ROW_LANES", tile.row_lanes)
        .size("COL_LANES", tile.col_lanes)
        .size("PARTS", parts)
        .size("SUMS", tile.tall * tile.wide)
        .size("SLICES", slices)
}
