//! Applies an RMS norm to rows, all of them or a selection.

use super::matmul::NORM_LANES;
use attn_kernels::declare::{Listed, Sizes, levels};
use attn_kernels::slot::{self, Flag};
use attn_kernels::{Level, Variant, bindings, kernel, params};

kernel! {
    /// The kernel; [`RmsNormBuffers`] lists its bindings.
    "rms_norm"(RmsNormParams, RmsNormBuffers): Dense,
    grid: |params, _| [params.rows, 1, 1],
    modules: [super::MODULES],
    listed: listed,
    variants: "rows, gather, or added to `out`; reductions by tree or subgroup",
    bytes: "`16 * width` per row",
    cases: crate::self_test::rows::rms_norm,
}

fn listed(_: &Sizes) -> Listed {
    let forms = [("rows", NormForm::Store), ("added", NormForm::Add), ("gather", NormForm::Gather)];
    levels(|level| forms.map(|(part, form)| (part.into(), variant(form, NORM_LANES, level))).into())
}

params! {
    /// Uniform parameters.
    pub struct RmsNormParams {
        /// Number of rows to write.
        pub rows: u32,
        /// Number of elements a row.
        pub width: u32,
        /// Epsilon added to the mean square.
        pub eps: f32,
        /// Index of the first entry of `sources`.
        pub first: u32,
    }
}

bindings! {
    /// Buffers of `rms_norm`.
    pub struct RmsNormBuffers(RmsNormParams) {
        /// Rows, `[*, width]`.
        read x: f32,
        /// Indices of the rows to gather, from entry `first` on.
        read sources: u32,
        /// Weight, `[width]`.
        read weight: f32,
        /// Normed rows, `[rows, width]`.
        write out: f32,
    }
}

/// Source of the rows and destination of the normalised ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NormForm {
    /// Row `i` is stored as row `i`.
    Store,
    /// Row `sources[first + i]` is stored as row `i`.
    Gather,
    /// Row `i` is added to row `i` of `out`.
    Add,
}

/// Whether input rows are read in the order of `sources` instead of their own.
pub(crate) const GATHER: Flag = Flag("GATHER");
/// Whether results are added.
pub(crate) const ADD: Flag = Flag("ADD");

/// Returns the variant with `lanes` lanes a row.
#[must_use]
pub fn variant(form: NormForm, lanes: u32, level: Level) -> Variant {
    Variant::new(&KERNEL)
        .set(GATHER, form == NormForm::Gather)
        .set(ADD, form == NormForm::Add)
        .set(slot::WG, lanes)
        .by_level(slot::REDUCE, level)
}
