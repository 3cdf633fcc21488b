//! Adds up what [`matmul_coop`](super::matmul_coop) leaves where it cuts k.

use attn_kernels::{Access, Kernel, Variant};
use bytemuck::{Pod, Zeroable};

use super::matmul::Epilogue;

/// Bindings: partials, y.
pub static KERNEL: Kernel = Kernel {
    name: "split_sum",
    wgsl: include_str!("../../wgsl/split_sum.wgsl"),
    modules: &[super::MODULES],
    params_bytes: size_of::<SplitSumParams>(),
    bindings: &[Access::Read, Access::Write],
};

/// Uniform parameters.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct SplitSumParams {
    /// Rows of y.
    pub rows: u32,
    /// Columns.
    pub cols: u32,
    /// Partial sums of a result.
    pub splits: u32,
    /// f32 from row to row of y.
    pub y_stride: u32,
    /// First column of y.
    pub y_offset: u32,
    /// Zero.
    pub pad0: u32,
    /// Zero.
    pub pad1: u32,
    /// Zero.
    pub pad2: u32,
}

/// The kernel for an epilogue of one part.
#[must_use]
pub fn variant(epilogue: Epilogue) -> Variant {
    let (module, parts) = epilogue.module();
    assert_eq!(parts, 1, "partial sums of {epilogue:?} are of two parts");
    Variant::new(&KERNEL).module("epilogue", module)
}

/// Workgroups for `rows` rows and `cols` columns.
#[must_use]
pub fn grid(rows: u32, cols: u32) -> [u32; 3] {
    [cols.div_ceil(64), rows, 1]
}
