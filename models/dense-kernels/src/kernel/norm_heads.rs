//! Applies an RMS or layer norm to parts of rows, in place: query and key heads, latents.

use attn_kernels::declare::{Listed, Sizes, levels};
use attn_kernels::kernel::flat_grid;
use attn_kernels::slot::{self, Flag};
use attn_kernels::{Level, Variant, bindings, kernel, params};

kernel! {
    /// The kernel; [`NormHeadsBuffers`] lists its bindings.
    "norm_heads"(NormHeadsParams, NormHeadsBuffers): Dense,
    grid: |params, _| flat_grid(params.rows * params.heads),
    modules: [super::MODULES],
    listed: listed,
    variants: "RMS or layer norm; reductions by tree or subgroup",
    bytes: "`16 * width` per head",
    cases: crate::self_test::rows::norm_heads,
}

fn listed(_: &Sizes) -> Listed {
    levels(|level| {
        vec![("rms".into(), variant(Norm::Rms, level)), ("layer".into(), variant(Norm::Layer, level))]
    })
}

params! {
    /// Uniform parameters.
    pub struct NormHeadsParams {
        /// Number of rows.
        pub rows: u32,
        /// Number of runs in each row, such as heads.
        pub heads: u32,
        /// Number of elements of a run.
        pub width: u32,
        /// Number of f32 from one row to the next.
        pub stride: u32,
        /// First element of the first run of a row.
        pub first: u32,
        /// Epsilon added to the mean square.
        pub eps: f32,
    }
}

bindings! {
    /// Buffers of `norm_heads`.
    pub struct NormHeadsBuffers(NormHeadsParams) {
        /// Factors of the norm, then its addends, `[2, width]`.
        read weight: f32,
        /// Rows of `stride` f32 with runs one after the other from `first` on.
        write x: f32,
    }
}

/// Number of lanes per run.
const LANES: u32 = 64;

/// Kinds of norms.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Norm {
    /// RMS norm.
    Rms,
    /// Layer norm, which subtracts the mean first.
    Layer,
}

/// Whether the mean is subtracted.
pub(crate) const CENTRED: Flag = Flag("CENTRED");

/// Returns the variant for one kind of norm.
#[must_use]
pub fn variant(norm: Norm, level: Level) -> Variant {
    Variant::new(&KERNEL).set(CENTRED, norm == Norm::Layer).set(slot::WG, LANES).by_level(slot::REDUCE, level)
}
