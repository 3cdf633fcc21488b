//! RMS norm of rows, all of them or a selection.

use attn_kernels::{Kernel, Level, Params, Variant, bindings, params};

/// The kernel; [`RmsNormBuffers`] lists its bindings.
pub static KERNEL: Kernel = Kernel {
    name: "rms_norm",
    role: attn_kernels::Role::Dense,
    wgsl: include_str!("../../wgsl/rms_norm.wgsl"),
    modules: &[super::MODULES, attn_kernels::MODULES],
    params: RmsNormParams::LAYOUT,
    bindings: RmsNormBuffers::BINDINGS,
};

params! {
    /// Uniform parameters.
    pub struct RmsNormParams {
        /// Rows to write.
        pub rows: u32,
        /// Elements a row.
        pub width: u32,
        /// Added to the mean square.
        pub eps: f32,
        /// First entry of `sources`.
        pub first: u32,
    }
}

bindings! {
    /// Buffers of `rms_norm`.
    pub struct RmsNormBuffers(RmsNormParams) {
        /// Rows, `[*, width]`.
        read x: f32,
        /// Rows to gather, from `first` on.
        read sources: u32,
        /// Weight, `[width]`.
        read weight: f32,
        /// Normed rows, `[rows, width]`.
        write out: f32,
    }
}

/// Source of the rows and destination of the normalised ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// Row `i` is stored as row `i`.
    Store,
    /// Row `sources[first + i]` is stored as row `i`.
    Gather,
    /// Row `i` is added to row `i` of `out`.
    Add,
}

/// The kernel with `lanes` lanes a row.
#[must_use]
pub fn variant(form: Form, lanes: u32, level: Level) -> Variant {
    Variant::new(&KERNEL)
        .size("GATHER", u32::from(form == Form::Gather))
        .size("ADD", u32::from(form == Form::Add))
        .size("WG", lanes)
        .reduce(level)
}

/// Workgroups for `rows` rows.
#[must_use]
pub fn grid(rows: u32) -> [u32; 3] {
    [rows, 1, 1]
}
