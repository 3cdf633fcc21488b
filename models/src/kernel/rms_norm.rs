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

/// The kernel with `lanes` lanes a row; with `gather` row `i` of the output comes from row `sources[first + i]`.
#[must_use]
pub fn variant(gather: bool, lanes: u32, level: Level) -> Variant {
    of(gather, false, lanes, level)
}

fn of(gather: bool, add: bool, lanes: u32, level: Level) -> Variant {
    Variant::new(&KERNEL)
        .size("GATHER", u32::from(gather))
        .size("ADD", u32::from(add))
        .size("WG", lanes)
        .module("reduce", if level == Level::Baseline { "reduce_tree" } else { "reduce_subgroup" })
}

/// The kernel that adds normed rows to `out`.
#[must_use]
pub fn adding(lanes: u32, level: Level) -> Variant {
    of(false, true, lanes, level)
}

/// Workgroups for `rows` rows.
#[must_use]
pub fn grid(rows: u32) -> [u32; 3] {
    [rows, 1, 1]
}
