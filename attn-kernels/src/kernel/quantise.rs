//! Converts rows of f32 to codes of 8 bits, as caches and indexers store keys, without any other work.

use super::LaunchError;
use super::error::Launch;
use crate::Variant;
use crate::declare::{Listed, Sizes};
use crate::slot::{self, OneOf};

kernel! {
    /// The kernel; [`QuantiseBuffers`] lists its bindings.
    "quantise"(QuantiseParams, QuantiseBuffers): Cache,
    grid: |params, _| super::flat_grid(params.rows),
    listed: listed,
    variants: "fp8 at a given scale, one a row, or a power of two a row; int8 at a given scale or one a row",
    bytes: "`5 * width` per row",
    cases: crate::self_test::quantise::cases,
}

fn listed(sizes: &Sizes) -> Listed {
    [
        ("fp8", Code::Fp8, Scale::Given),
        ("fp8-rows", Code::Fp8, Scale::PerRow),
        ("fp8-ue8m0", Code::Fp8, Scale::Ue8m0),
        ("int8-rows", Code::Int8, Scale::PerRow),
    ]
    .map(|(part, code, scale)| {
        (part.into(), variant(sizes.head_dim, code, scale).expect("heads are multiples of 4"))
    })
    .into()
}

params! {
    /// Uniform parameters.
    pub struct QuantiseParams {
        /// Number of rows.
        pub rows: u32,
        /// Number of f32 from one row of `x` to the next.
        pub row_stride: u32,
        /// First element of a row that is converted.
        pub first: u32,
        /// The scale of all rows with [`Scale::Given`].
        pub scale: f32,
    }
}

bindings! {
    /// Buffers of `quantise`.
    pub struct QuantiseBuffers(QuantiseParams) {
        /// Rows of `row_stride` f32; of each, `width` f32 from `first` on are read.
        read x: f32,
        /// Codes, `[rows, width / 4]` words.
        write codes: u32,
        /// Scales, `[rows]`, if each row has one.
        write scales: f32,
    }
}

/// Formats of codes of 8 bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Code {
    /// fp8 e4m3 without infinities, up to 448.
    Fp8,
    /// Integer of -127 to 127.
    Int8,
}

/// Format of the codes.
pub(crate) const CODE: OneOf<Code> =
    OneOf::new("code", &[(Code::Fp8, "code_fp8"), (Code::Int8, "code_int8")]);

/// Scale factors of codes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Scale {
    /// One given scale for all rows, [`QuantiseParams::scale`].
    Given,
    /// One scale per row, `max(amax / largest code, 1e-6)`.
    PerRow,
    /// One scale per row (UE8M0): the smallest power of two that is at least `max(amax, 1e-4) / largest code`.
    Ue8m0,
}

/// Kind of the scale factors.
pub(crate) const SCALE: OneOf<Scale> = OneOf::new(
    "scale",
    &[(Scale::Given, "scale_given"), (Scale::PerRow, "scale_amax"), (Scale::Ue8m0, "scale_ue8m0")],
);

/// Returns the variant for rows of `width` elements.
///
/// # Errors
/// A width that is not a multiple of 4.
pub fn variant(width: u32, code: Code, scale: Scale) -> Result<Variant, LaunchError> {
    Launch(KERNEL.name).multiple("width of a row", width, 4)?;
    Ok(Variant::new(&KERNEL).set(slot::WIDTH, width).set(CODE, code).set(SCALE, scale))
}
