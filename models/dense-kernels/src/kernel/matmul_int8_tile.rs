//! Multiplies a quantised matrix by many rows of activations in codes of 8 bits: [`matmul_int8`] for devices without
//! cooperative matrices.
//!
//! The tile of all products is that of [`Tile::coded`].

use crate::pack::Format;
use attn_kernels::declare::{Listed, Sizes};
use attn_kernels::profile::DeviceProfile;
use attn_kernels::profile::Registers;
use attn_kernels::{Variant, kernel};

use super::matmul::Epilogue;
use super::matmul::WEIGHTS;
use super::matmul_int8::{self, MatmulInt8Params};
use super::matmul_tile::{Tile, workgroup_tile};

kernel! {
    /// The kernel, with the parameters and bindings of [`matmul_int8`].
    "matmul_int8_tile"(super::matmul_int8::MatmulInt8Params, super::matmul_int8::MatmulInt8Buffers): Dense,
    grid: grid,
    modules: [super::MODULES],
    listed: listed,
    variants: "nine encodings; store, add, silu_mul; tiles of 64 x 128, or 64 x 64 for *few registers*",
    bytes: "the matrix once for 64 rows; `1.25` per activation and 128 or 64 columns",
    cases: crate::self_test::matmul::matmul_int8_tile,
}

fn listed(_: &Sizes) -> Listed {
    Registers::listed(|registers| {
        let of = |format, epilogue| {
            let slices = matmul_int8::slices(epilogue, DeviceProfile::WEBGPU.workgroup_lanes);
            variant(format, epilogue, slices, Tile::coded(registers))
        };
        let gated = ("q4k-silu_mul".into(), of(Format::Q4K, Epilogue::SiluMul));
        Format::listed_codes(|format| of(format, Epilogue::Store)).into_iter().chain([gated]).collect()
    })
}

/// Returns the variant for one storage type of weights, an epilogue and a tile, with `slices` from [`matmul_int8::slices`].
#[must_use]
pub fn variant(weights: Format, epilogue: Epilogue, slices: u32, tile: Tile) -> Variant {
    let one =
        Variant::new(&KERNEL).set_data(WEIGHTS, weights, weights.label()).set(super::matmul::SLICES, slices);
    tile.cut(one, epilogue)
}

fn grid(params: &MatmulInt8Params, variant: &Variant) -> [u32; 3] {
    let [rows, cols] = workgroup_tile(variant);
    [params.cols.div_ceil(cols), params.rows.div_ceil(rows), 1]
}
