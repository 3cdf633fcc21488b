//! Rows as codes of 8 bits, as they are or after an RMS norm: the activations of [`matmul_int8`](super::matmul_int8).
//!
//! A block of 32 elements shares one scale, its largest magnitude over 127: the coding that llama.cpp calls `Q8_1`.

use attn_kernels::{Access, Kernel, Level, Variant};
use bytemuck::{Pod, Zeroable};

/// Bindings: x, codes, scales.
pub static KERNEL: Kernel = Kernel {
    name: "quantize_rows",
    wgsl: include_str!("../../wgsl/quantize_rows.wgsl"),
    modules: &[super::MODULES, attn_kernels::MODULES],
    params_bytes: size_of::<QuantizeRowsParams>(),
    bindings: &[Access::Read, Access::Write, Access::Write],
};

/// The same kernel behind a norm. Bindings: x, codes, scales, weight.
pub static NORMED: Kernel =
    Kernel { bindings: &[Access::Read, Access::Write, Access::Write, Access::Read], ..KERNEL };

/// Uniform parameters.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct QuantizeRowsParams {
    /// Rows of x.
    pub rows: u32,
    /// Blocks of 32 in a row.
    pub blocks: u32,
    /// vec4 from row to row of x.
    pub x_stride: u32,
    /// Added to the mean square, behind a norm.
    pub eps: f32,
}

/// Lanes of a workgroup, of four elements each.
const LANES: u32 = 256;

/// The kernel, behind an RMS norm with `norm`.
#[must_use]
pub fn variant(norm: bool, level: Level) -> Variant {
    Variant::new(if norm { &NORMED } else { &KERNEL })
        .size("WG", LANES)
        .module("reduce", if level == Level::Baseline { "reduce_tree" } else { "reduce_subgroup" })
        .module("norm", if norm { "quantize_normed" } else { "quantize_plain" })
}

/// Workgroups for `rows` rows of `blocks` blocks.
#[must_use]
pub fn grid(rows: u32, blocks: u32) -> [u32; 3] {
    [blocks.div_ceil(LANES / 8), rows, 1]
}
