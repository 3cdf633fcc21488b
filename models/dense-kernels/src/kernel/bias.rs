//! Writes or adds a bias to every row, before the matmul that adds to it.

use attn_kernels::kernel::flat_grid;
use attn_kernels::slot::Flag;
use attn_kernels::{Variant, bindings, kernel, params};

kernel! {
    /// The kernel; [`BiasBuffers`] lists its bindings.
    "bias"(BiasParams, BiasBuffers): Dense,
    grid: |params, _| flat_grid((params.rows * params.cols).div_ceil(WG)),
    modules: [super::MODULES],
    listed: |_| vec![("write".into(), variant(BiasForm::Store)), ("add".into(), variant(BiasForm::Add))],
    variants: "write or add",
    bytes: "`8 * cols` per row",
    cases: crate::self_test::rows::bias,
}

params! {
    /// Uniform parameters.
    pub struct BiasParams {
        /// Number of rows.
        pub rows: u32,
        /// Number of columns.
        pub cols: u32,
        /// Number of f32 from one row of y to the next.
        pub stride: u32,
        /// First column of y.
        pub first: u32,
    }
}

bindings! {
    /// Buffers of `bias`.
    pub struct BiasBuffers(BiasParams) {
        /// Biases, `[cols]`.
        read added: f32,
        /// Rows of `stride` f32.
        write y: f32,
    }
}

const WG: u32 = 64;

/// Operation of the bias on the columns of a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BiasForm {
    /// Stores the bias.
    Store,
    /// Adds the bias.
    Add,
}

/// Whether the bias is added to y instead of replacing it.
pub(crate) const KEEP: Flag = Flag("KEEP");

/// Returns the variant in one form.
#[must_use]
pub fn variant(form: BiasForm) -> Variant {
    Variant::new(&KERNEL).set(KEEP, form == BiasForm::Add).constant("WG", WG)
}
