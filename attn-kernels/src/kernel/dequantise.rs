//! Converts rows of codes of 8 bits back to f32.

use super::LaunchError;
use super::error::Launch;
use super::quantise::{CODE, Code};
use crate::declare::{Listed, Sizes};
use crate::{Variant, slot};

kernel! {
    /// The kernel; [`DequantiseBuffers`] lists its bindings.
    "dequantise"(DequantiseParams, DequantiseBuffers): Cache,
    grid: |params, variant| {
        let quads = variant.number(slot::WIDTH) / 4;
        super::flat_grid((params.rows * quads).div_ceil(WG))
    },
    listed: listed,
    variants: "fp8, int8",
    bytes: "`5 * width` per row",
    cases: crate::self_test::quantise::dequantise,
}

fn listed(sizes: &Sizes) -> Listed {
    let of = |code| variant(sizes.head_dim, code).expect("heads are multiples of 4");
    vec![("fp8".into(), of(Code::Fp8)), ("int8".into(), of(Code::Int8))]
}

params! {
    /// Uniform parameters.
    pub struct DequantiseParams {
        /// Number of rows.
        pub rows: u32,
        /// Number of f32 from one row of `x` to the next.
        pub row_stride: u32,
        /// First element of a row that is written.
        pub first: u32,
    }
}

bindings! {
    /// Buffers of `dequantise`.
    pub struct DequantiseBuffers(DequantiseParams) {
        /// Codes, `[rows, width / 4]` words.
        read codes: u32,
        /// Scales, `[rows]`.
        read scales: f32,
        /// Rows of `row_stride` f32; of each, `width` f32 from `first` on are written.
        write x: f32,
    }
}

const WG: u32 = 64;

/// Returns the variant for rows of `width` elements.
///
/// # Errors
/// A width that is not a multiple of 4.
pub fn variant(width: u32, code: Code) -> Result<Variant, LaunchError> {
    Launch(KERNEL.name).multiple("width of a row", width, 4)?;
    Ok(Variant::new(&KERNEL).set(slot::WIDTH, width).set(CODE, code).constant("WG", WG))
}
