//! A bias, in every row, before the matmul that adds to it.

use attn_kernels::kernel::flat_grid;
use attn_kernels::{Kernel, Params, Variant, bindings, params};

/// The kernel; [`BiasBuffers`] lists its bindings.
pub static KERNEL: Kernel = Kernel {
    name: "bias",
    role: attn_kernels::Role::Dense,
    wgsl: include_str!("../../wgsl/bias.wgsl"),
    modules: &[super::MODULES, attn_kernels::MODULES],
    params: BiasParams::LAYOUT,
    bindings: BiasBuffers::BINDINGS,
};

params! {
    /// Uniform parameters.
    pub struct BiasParams {
        /// Rows.
        pub rows: u32,
        /// Columns.
        pub cols: u32,
        /// f32 from row to row of y.
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
pub enum Form {
    /// Stores the bias.
    Store,
    /// Adds the bias.
    Add,
}

/// The kernel in one form.
#[must_use]
pub fn variant(form: Form) -> Variant {
    Variant::new(&KERNEL).size("KEEP", u32::from(form == Form::Add)).constant("WG", WG)
}

/// Workgroups for `rows` rows of `cols` columns.
#[must_use]
pub fn grid(rows: u32, cols: u32) -> [u32; 3] {
    flat_grid((rows * cols).div_ceil(WG))
}
