//! RMS norm of rows, all of them or a selection.

use attn_kernels::{Access, Kernel, Level, Variant};
use bytemuck::{Pod, Zeroable};

/// Bindings: x, sources, weight, out.
pub static KERNEL: Kernel = Kernel {
    name: "rms_norm",
    wgsl: include_str!("../../wgsl/rms_norm.wgsl"),
    modules: &[super::MODULES, attn_kernels::MODULES],
    params_bytes: size_of::<RmsNormParams>(),
    bindings: &[Access::Read, Access::Read, Access::Read, Access::Write],
};

/// Uniform parameters.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
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

/// The kernel with `lanes` lanes a row; with `gather` row `i` of the output comes from row `sources[first + i]`.
#[must_use]
pub fn variant(gather: bool, lanes: u32, level: Level) -> Variant {
    Variant::new(&KERNEL)
        .size("GATHER", u32::from(gather))
        .size("WG", lanes)
        .module("reduce", if level == Level::Baseline { "reduce_tree" } else { "reduce_subgroup" })
}

/// Workgroups for `rows` rows.
#[must_use]
pub fn grid(rows: u32) -> [u32; 3] {
    [rows, 1, 1]
}
