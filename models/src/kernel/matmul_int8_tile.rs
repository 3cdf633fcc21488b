//! Quantised matrix times many rows of activations in codes of 8 bits: [`matmul_int8`] where no cooperative matrices run.
//!
//! The tile of all products is that of [`Tile::coded`].

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

/// The kernel for one storage type of weights, an epilogue and a tile, with `slices` from [`matmul_int8::slices`].
#[must_use]
pub fn variant(weights: &'static str, epilogue: Epilogue, slices: u32, tile: Tile) -> Variant {
    let one = Variant::new(&KERNEL).module("weights", weights).size("SLICES", slices);
    tile.cut(one, epilogue)
}
